"""Fewer denoise steps where the time left asks for it. Knows no policy."""
