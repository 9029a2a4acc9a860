"""Real-time chunking: a new chunk of actions that goes on from the one the robot is executing. Model-agnostic."""
