"""Scores of translations and captions."""
