"""A page on the user's own machine where a model is seen at work: `seqtool demo`."""
