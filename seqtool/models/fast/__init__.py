"""Faster versions of the models' parts: `quicken` puts them in, and no model refers to them."""
