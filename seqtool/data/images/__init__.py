"""Reading images, and storing a captioner's input for them."""
