"""Text and speech of generators, piece by piece as they are made."""
