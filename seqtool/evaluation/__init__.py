"""`eval`: hypotheses scored against references, and texts by how well a language model predicts them.

Each task has an evaluator, in `translations`, `captions` and `texts`: it reads segments from files or a corpus, has a
model write a hypothesis for each, and scores them (`metrics.scores`). The results are an `Evaluation` of the same form
for every task, which is written as JSON, as text, and as a report, the HTML page.
"""
