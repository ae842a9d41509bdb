"""Turns text into token ids."""
