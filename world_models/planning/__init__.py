"""Planning in a world model: poses, the cross-entropy method, and its walk."""
