"""Diffusion Policy: a chunk of actions out of noise, given the last few observations."""
