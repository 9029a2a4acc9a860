"""Generation: text, speech and images of any model that declares them, see model.generation."""
