"""From images to a model's input."""
