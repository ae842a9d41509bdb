"""Metrics: scores of translations, captions and word alignments, with bootstrap intervals."""
