"""The ZeroMQ protocol of GR00T's policy server."""
