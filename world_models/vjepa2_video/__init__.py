"""V-JEPA 2 without actions: encodes clips, and predicts the latents of patches that are hidden."""
