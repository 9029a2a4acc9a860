"""A generator to load a worker with: real matrix products, partial results as it goes, a picture without meaning."""
