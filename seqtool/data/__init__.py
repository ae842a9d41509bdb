"""Data: vocabularies, parallel text, the cache on disk, batches."""
