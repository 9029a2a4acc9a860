"""Robot.Control: one stream per robot, observations in, action chunks out."""
