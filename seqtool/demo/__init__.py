"""A local web demo, where you can watch a model work: `seqtool demo`."""
