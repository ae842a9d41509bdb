"""From images to what a model reads."""
