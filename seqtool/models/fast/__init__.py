"""Faster parts, and models for decoding only; no model refers to them."""
