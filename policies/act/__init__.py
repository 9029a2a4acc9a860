"""ACT: a transformer that answers cameras and a state with a whole chunk of actions at once."""
