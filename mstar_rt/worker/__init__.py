"""One process per rank: turns ready nodes of many requests into batches and routes what comes out."""
