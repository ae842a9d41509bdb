"""Where sentences, images and captions come from."""
