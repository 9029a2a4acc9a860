"""Generation: text and speech of any model that declares them, see model.generation."""
