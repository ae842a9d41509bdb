"""Draw how far back the predictions of language models reach: attributions to earlier symbols, by their distance.

    seqtool train -m model.cell=rnn,gru,lstm model=language_model data=text model.embedding=64 model.hidden=256 \
        model.layers=1 train.steps=600 train.minutes=null 'run=cell-${model.cell}'
    python scripts/connectivity.py runs/cell-rnn runs/cell-gru runs/cell-lstm --output docs/pictures/connectivity.png

The upper part shows, for each model, what the last symbol of a text depends on; the lower part the mean over all
symbols, by distance. Both are |gradient × input| of the symbol's log-probability, as shares of the whole (after
"Visualizing memorization in RNNs", Madsen 2019, which shows gradients of logits).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

import seqtool
from seqtool.data.corpora import toy
from seqtool.predict.generator import Generator

REACH = 30  # the greatest distance that is drawn
LENGTH = 60  # the symbols of a text; all texts are read from a fresh state
TEXTS = 20


def shares(generator: Generator, text: str) -> NDArray[np.floating]:
    """T×T: the share of each earlier symbol in what a symbol's prediction depends on."""
    prefix = generator.attribute(text, method="gradient").prefix
    assert prefix is not None
    sizes = np.abs(np.nan_to_num(prefix))
    return sizes / np.maximum(sizes.sum(1, keepdims=True), 1e-30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, required=True, metavar="PICTURE")
    arguments = parser.parse_args()
    lines = "".join(f"{pair.source}\n" for pair in toy.generate(seed=2, train=0, valid=0, test=100)["test"])
    texts = [lines[i * LENGTH : (i + 1) * LENGTH] for i in range(TEXTS)]
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(9, 5.5), layout="constrained", height_ratios=(1, 2))
    rows = []
    for run in arguments.runs:
        generator: Any = seqtool.load(run, device="cpu", threads=1)
        of_texts = np.stack([shares(generator, text) for text in texts])
        rows.append(of_texts[0, -1, 1:])
        last = of_texts[:, REACH + 1 :]  # symbols with at least so many before them
        # row t is about symbol t, and column j about what is read at step j: <begin>, then symbol j - 1
        means = [np.mean([last[:, t, t + REACH + 1 - k] for t in range(last.shape[1])]) for k in range(REACH)]
        lower.plot(range(1, REACH + 1), means, marker=".", label=run.name)
        print(f"{run.name}: {sum(means[10:]):.4f} of the whole is more than 10 symbols away")
    upper.imshow(np.sqrt(rows), cmap="Blues", vmin=0, aspect="auto")
    upper.set_yticks(range(len(rows)), [run.name for run in arguments.runs])
    upper.set_xticks(range(LENGTH - 1), list(texts[0][:-1]), family="monospace", fontsize=8)
    upper.set_title(f"what the prediction of “{texts[0][-1]}”, the next symbol, depends on (square roots of shares)")
    lower.set(xlabel="symbols back", ylabel="mean share", yscale="log")
    lower.grid(alpha=0.3)
    lower.legend()
    figure.savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    main()
