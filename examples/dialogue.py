"""Dialogue with earlier turns (many to many): sequence to sequence, in which the turns before are part of the source.

    A: i am so hungry          B: oh dear          A: where should i go ?          B: go to the bakery

The last question alone does not tell the answer. The corpus joins the turns before it to the source, between marks:
"i am so hungry <turn> oh dear <turn> where should i go ?". The task is the toolkit's own translation, and so is the
model, with attention. Every question comes with every problem equally often, so that without earlier turns no model
whatever is right more often than once in six.

    python examples/dialogue.py

trains with two earlier turns and with none, into runs/dialogue_2 and runs/dialogue_0, and prints how often the answers
in held-out dialogues are right. In the folder examples/, or wherever Python finds this file:

    seqtool train data=dialogue.Dialogues data.turns=2 data.vocabulary.kind=word model=luong run=dialogue
    echo "i am so thirsty <turn> oh dear <turn> where should i go ?" | seqtool translate checkpoint=runs/dialogue
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from labelling import TRAINING, evaluate, print_table, run

from seqtool.data.corpora.corpus import Digest, TextCorpus
from seqtool.metrics.scores import Metric, Statistics

TURN = " <turn> "
PROBLEMS = {  # each with the answers to the questions below, in their order
    "hungry": ("eat some bread", "the baker can help", "go to the bakery"),
    "thirsty": ("drink some water", "the waiter can help", "go to the café"),
    "ill": ("take some medicine", "the doctor can help", "go to the hospital"),
    "tired": ("sleep for an hour", "the porter can help", "go to the hotel"),
    "bored": ("read a good book", "the librarian can help", "go to the library"),
    "lost": ("look at a map", "the guide can help", "go to the station"),
}
STATEMENTS = (
    "i am {}",
    "i am so {}",
    "now i am {} again",
    "my friend and i are {}",
    "today i feel {}",
    "i think i am {}",
)
REPLIES = ("oh dear", "i am sorry to hear that", "again ?", "really ?")
QUESTIONS = (
    ("what should i do ?", "what do you advise ?", "what would you do ?"),
    ("who can help me ?", "who could help ?", "is there anyone to ask ?"),
    ("where should i go ?", "where do i have to go ?", "which place is best ?"),
)


class Dialogues(TextCorpus):
    """A question and its answer; the source has the `turns` turns before the question, too. Which dialogues are held
    out does not depend on the problem.
    """

    name, source_language, target_language = "dialogues", "turns", "answer"

    def __init__(self, *, turns: int = 2) -> None:
        self._turns = turns

    def splits(self) -> tuple[str, ...]:
        return ("train", "valid", "test")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        questions = [(kind, question) for kind, forms in enumerate(QUESTIONS) for question in forms]
        for number, (statement, reply, (kind, question)) in enumerate(product(STATEMENTS, REPLIES, questions)):
            held_out = {0: "test", 3: "valid"}.get(number * 7 % 11, "train")
            for problem, answers in PROBLEMS.items() if held_out == split else ():
                turns = [statement.format(problem), reply, question]
                yield TURN.join(turns[-1 - self._turns :]), answers[kind]

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"turns": self._turns, "words": str((PROBLEMS, STATEMENTS, REPLIES, QUESTIONS)), "version": 1}


class Exact(Metric):
    """The percentage of answers that equal the reference."""

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        return np.array([[hypothesis in texts] for hypothesis, texts in zip(hypotheses, self.references, strict=True)])

    def score(self, statistics: Statistics) -> float:
        return 100 * statistics.mean()


def main() -> None:
    model = "model=luong model.score=dot model.embedding=64 model.hidden=64 model.cell=gru model.dropout=0"
    settings = f"data=dialogue.Dialogues data.vocabulary.kind=word {model} {TRAINING} optim.lr=0.01 train.epochs=5"
    rows = []
    for turns, description in ((2, "two earlier turns"), (0, "no earlier turns")):
        run(f"train {settings} data.turns={turns} run=dialogue_{turns}")
        accuracy = evaluate(f"dialogue_{turns}", "dialogue.Exact", trust="dialogue")
        rows.append((f"answers, {description}", accuracy, f"{100 / len(PROBLEMS):.1f} % by chance"))
    print_table(rows)


if __name__ == "__main__":
    main()
