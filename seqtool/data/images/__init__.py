"""Reads images, and stores the input that a captioner needs for them."""
