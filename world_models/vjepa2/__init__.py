"""V-JEPA 2-AC: a video encoder and an action-conditioned latent predictor, at any size of the family."""
