"""A model whose nodes do nothing, so that all that is measured is the runtime."""
