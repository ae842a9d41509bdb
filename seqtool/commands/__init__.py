"""The commands, a file each: every one is a page that wires the parts for one errand.

Only what an errand needs is imported: `prepare`, and `eval` of files, work without torch.
"""
