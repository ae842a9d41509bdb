"""From a model to its output: search, sampling and forced decoding."""
