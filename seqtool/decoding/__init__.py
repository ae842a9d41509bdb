"""From a model to what it says: search, sampling, forcing."""
