"""A trained model at work: sentences or images in, text out."""
