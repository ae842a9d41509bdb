"""Corpora: the sources of sentences, images and captions."""
