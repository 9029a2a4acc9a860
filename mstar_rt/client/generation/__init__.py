"""Text, speech and images of generators, piece by piece as they are made."""
