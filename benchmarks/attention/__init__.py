"""Ways to do paged attention on a CPU, measured side by side: ``python -m benchmarks.attention``."""
