"""BAGEL: one language model that reads text and images, and draws."""
