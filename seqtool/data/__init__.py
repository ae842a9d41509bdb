"""Data: corpora, vocabularies, images, the cache on disk, and batches."""
