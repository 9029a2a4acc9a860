"""mstar-rt: a real-time serving runtime for robot brains."""

__version__ = "0.1.0"
