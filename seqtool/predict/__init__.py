"""Using a trained model: sentences or images in, text out."""
