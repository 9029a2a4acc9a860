"""A control session in one file, and that file against a server."""
