"""`eval`: scores hypotheses against references, and texts by how well a language model predicts them.

Each task has an evaluator, in `translations`, `captions` or `texts`. It reads segments from files or a corpus, has a
model write a hypothesis for each unless a file holds them, and scores the hypotheses (`metrics.scores`). The results
are an `Evaluation`, whose interface is the same for every task: it is written as JSON, as text or as an HTML report.
"""
