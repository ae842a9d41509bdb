#!/usr/bin/env python
"""Measure the time to tokenise and score captions on one core, compared with pycocoevalcap if it is installed.

    pip install pycocoevalcap                # optional; its tokenizer needs Java
    python scripts/benchmarks/benchmark_metrics.py --repeats 3 --output results/caption_metrics.json

There are 5,000 images with one caption and five references each, which are made of seeded random words. Both systems
run in turn. pycocoevalcap scores seqtool's tokens, and its scores must equal seqtool's.
"""

import argparse
import contextlib
import io
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

import seqtool
from seqtool.metrics import ptb
from seqtool.metrics.captions import CaptionScorer

IMAGES, REFERENCES = 5_000, 5
WORD_TYPES = 8_000
HARD_WORDS = [
    "man's",
    "T-shirt",
    "22 3/4 St.",
    "4:30pm",
    '"stop"',
    "(left)",
    "don't",
    "U.S.",
    "2",
    "black-and-white",
    "5th",
]
HARD_SHARE = 0.002  # the share of hard words: as in COCO, about 2 captions in 100 have one
TOLERANCE = 1e-9  # the maximum difference between two scores

Seconds = dict[str, list[float]]  # the times of each task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peer", action=argparse.BooleanOptionalAction, default=True, help="measure pycocoevalcap, too"
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # applies to Java too
    hypotheses, references = captions()
    seconds: Seconds = {}
    peer = arguments.peer and installed("pycocoevalcap")
    different = None
    for _ in range(arguments.repeats):
        tokens, scores = measure_seqtool(hypotheses, references, seconds)
        if peer:
            different = measure_pycocoevalcap(hypotheses, references, tokens, scores, seconds)
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    record: dict[str, Any] = {
        "images": IMAGES,
        "captions": IMAGES * (REFERENCES + 1),
        "median_seconds": medians,
        "all_seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
    }
    if peer:
        parts = ("bleu", "rouge_l", "cider_d")
        others = sum(medians[f"pycocoevalcap_{part}"] for part in parts)
        record["captions_tokenised_differently"] = different
        record["times_faster"] = {
            "tokenise": round(medians["pycocoevalcap_tokenise"] / medians["tokenise"], 1),
            "score": round(others / medians["score"], 1),
        }
    record |= {
        "cores": 1,
        "cpu": cpu(),
        "versions": {
            "seqtool": seqtool.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pycocoevalcap": metadata.version("pycocoevalcap") if peer else None,
        },
    }
    for name, value in medians.items():
        print(f"{name:<30}{value:>8.3f} s")
    for name, value in record.get("times_faster", {}).items():
        print(f"{name + ', times faster':<30}{value:>8.1f}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def captions() -> tuple[dict[str, str], dict[str, list[str]]]:
    """The caption and the references of each image: words by Zipf's law, with punctuation and a few difficult words."""
    generator = random.Random(1)
    syllables = [c + v for c in "bdfgklmnprst" for v in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(WORD_TYPES)]
    weights = [1 / (rank + 2) for rank in range(WORD_TYPES)]

    def sentence() -> list[str]:
        drawn = generator.choices(words, weights, k=generator.randint(7, 14))
        return [generator.choice(HARD_WORDS) if generator.random() < HARD_SHARE else word for word in drawn]

    def punctuated(sentence: list[str]) -> str:
        text = " ".join(sentence).capitalize()
        if generator.random() < 0.1:
            return text.replace(" ", ", ", 1) + "."
        return text + generator.choice([".", ".", "", " ."])

    hypotheses, references = {}, {}
    for image in map(str, range(IMAGES)):
        original = sentence()
        variants = [
            [word if generator.random() < 0.6 else other for word, other in zip(original, sentence(), strict=False)]
            for _ in range(6)
        ]
        hypotheses[image] = punctuated(variants[0])
        references[image] = [punctuated(variant) for variant in variants[1:]]
    return hypotheses, references


def measure_seqtool(hypotheses: dict[str, str], references: dict[str, list[str]], seconds: Seconds) -> tuple[Any, Any]:
    """Measure seqtool, and return its tokens (of captions and of references) and scores."""
    ptb._tokens_of_part.cache_clear()  # so that repeats do not profit from earlier ones
    with timed("tokenise", seconds):
        tokens = {image: " ".join(ptb.tokenize(caption)) for image, caption in hypotheses.items()}
        alternatives = {image: [" ".join(ptb.tokenize(c)) for c in texts] for image, texts in references.items()}
    with timed("score", seconds):
        scorer = CaptionScorer(list(alternatives.values()), tokenize="none")
        statistics = scorer.statistics(list(tokens.values()))
        scores = scorer.scores(statistics)
        scorer.each(statistics)
    with timed("validation, references", seconds):
        scorer = CaptionScorer(list(alternatives.values()), tokenize="none", rouge=False)
    with timed("validation, each time", seconds):
        scorer.scores(scorer.statistics(list(tokens.values())))
    return (tokens, alternatives), scores


def measure_pycocoevalcap(
    hypotheses: dict[str, str], references: dict[str, list[str]], tokens: Any, scores: Any, seconds: Seconds
) -> int:
    """Measure pycocoevalcap, and check its scores of seqtool's tokens. Return the number of captions that it tokenises
    differently.
    """
    tokenizer = import_module("pycocoevalcap.tokenizer.ptbtokenizer").PTBTokenizer()
    with timed("pycocoevalcap_tokenise", seconds):
        tokenised = tokenizer.tokenize({image: [{"caption": text}] for image, text in hypotheses.items()})
        others = tokenizer.tokenize({image: [{"caption": t} for t in texts] for image, texts in references.items()})
    our_tokens = [*tokens[0].values(), *(text for texts in tokens[1].values() for text in texts)]
    their_tokens = [text for texts in (*tokenised.values(), *others.values()) for text in texts]
    different: int = sum(a != b for a, b in zip(our_tokens, their_tokens, strict=True))
    results = {image: [text] for image, text in tokens[0].items()}
    scorers: dict[str, tuple[Callable[[], Any], list[float]]] = {
        "bleu": (import_module("pycocoevalcap.bleu.bleu").Bleu, [scores[f"bleu{n}"] for n in (1, 2, 3, 4)]),
        "rouge_l": (import_module("pycocoevalcap.rouge.rouge").Rouge, [scores["rouge_l"]]),
        "cider_d": (import_module("pycocoevalcap.cider.cider").Cider, [scores["cider_d"]]),
    }
    for name, (scorer, expected) in scorers.items():
        with timed(f"pycocoevalcap_{name}", seconds), contextlib.redirect_stdout(io.StringIO()):
            value = scorer().compute_score(tokens[1], results)[0]
        assert np.allclose(value, expected, rtol=0, atol=TOLERANCE), (name, value, expected)
    return different


@contextlib.contextmanager
def timed(name: str, seconds: Seconds) -> Any:
    """Add the time spent in the context to the times of this task."""
    start = time.perf_counter()
    yield
    seconds.setdefault(name, []).append(time.perf_counter() - start)


def installed(package: str) -> bool:
    try:
        import_module(package)
    except ImportError:
        return False
    return True


def cpu() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
