"""The network edge: gRPC services that turn calls into messages to the conductor. No torch and no
model code.
"""
