"""Corpora: where sentences, images and captions come from."""
