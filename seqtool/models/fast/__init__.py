"""Faster parts, and models for decoding only. Models themselves do not refer to this package."""
