"""A robot's side of Robot.Control: what it sends, which action is due now, and what it does when nothing comes."""
