"""Reading images, and the store of what a model reads of them."""
