"""pi0.5 and pi0: cameras, an instruction and the robot's state to a chunk of actions, by flow matching."""
