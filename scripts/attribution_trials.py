#!/usr/bin/env python
r"""Measure how often the highest attribution is to the source word, or to the object, that a word comes from.

    seqtool train run=trials-luong data=toy model=luong schedule=cosine model.embedding=128 model.hidden=256 \
        model.dropout=0.1 optim.lr=0.003 schedule.warmup=300 train.epochs=8 train.minutes=null device=cpu threads=1
    seqtool train run=trials-transformer experiment=toy_transformer train.minutes=null device=cpu threads=1
    python scripts/attribution_trials.py rnnsearch=builtin/words luong=runs/trials-luong \
        transformer=runs/trials-transformer soft=builtin/soft hard=builtin/hard

The built-in corpus and the built-in pictures know the truth, and the models read the references of their test sets. Of
each method, a name in `seqtool.predict.attribution.METHODS`, the record has these shares with their 95 % bootstrap
intervals over sentences or pictures:

words       of the target words with a sure link, those whose highest source word is the linked one
magnitude   the same, where the highest is that of the greatest absolute value
gender      of the words whose form shows the gender of a noun that is written after them, those whose highest source
            word is this noun, when the attributions explain why this form and not that of the other gender ("la", not
            "el"). Attention does not depend on the question.
nouns       of the nouns of captions whose objects are in the picture, those whose highest cell overlaps their box
colours     the same for the words of colours before these nouns
occlusion   of the words or nouns above, those whose highest word or cell is also the highest by occlusion

`chance` is the share of random words and cells. `error` is the mean distance in nats of the sum of integrated gradients
from what it should be. What is measured is kept in `runs/trials`: a call that was stopped, or ended after `--minutes`,
is continued by another.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evaluate_scenes import cells, hardware
from scene_captions import object_words

import seqtool
from seqtool.data.corpora import scenes, toy, toy_words
from seqtool.data.corpora.scene_drawing import render
from seqtool.data.text.alignment import parse_pharaoh
from seqtool.data.text.words import words_and_punctuation
from seqtool.metrics.bootstrap import bootstrap
from seqtool.predict.attribution import METHODS, Attribution, other_words
from seqtool.predict.captioner import Captioner
from seqtool.predict.translator import Translator

PARADIGMS = [
    *toy_words.DETERMINERS.values(),
    *toy_words.BEFORE.values(),
    *(forms for kinds in toy_words.AFTER.values() for group in kinds for _, forms in group),
]
OTHER_GENDER = {
    change(form): change(paradigm[i ^ 1])
    for paradigm in PARADIGMS
    for i, form in enumerate(paradigm)
    for change in (str.lower, str.capitalize)
    if form != paradigm[i ^ 1]
}

Counts = dict[str, dict[str, float]]  # by measure: the number of hits of each method, of words, and expected by chance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="NAME=CHECKPOINT")
    parser.add_argument("--size", type=int, default=500, help="sentences, or pictures, of the test set")
    parser.add_argument("--steps", type=int, default=20, help="points of integrated gradients")
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after so many minutes")
    parser.add_argument("--output", type=Path, default=Path("results/attribution.json"))
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    for name, checkpoint in (model.split("=", 1) for model in arguments.models):
        predictor: Any = seqtool.load(checkpoint, device="cpu", threads=1)
        trial = sentence_trials if isinstance(predictor, Translator) else scene_trials
        file = Path("runs/trials") / f"{name}-{arguments.steps}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        results = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        with file.open("a") as lines:
            for result in trial(predictor, arguments.size, len(results), arguments.steps):
                results.append(result)
                lines.write(json.dumps(result) + "\n")
                if time.monotonic() > end:
                    sys.exit(f"{name}: {len(results)} of {arguments.size}; call again to continue.")
        record = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        record["command"] = shlex.join(["python", *sys.argv]) if len(arguments.models) > 1 else record.get("command")
        record |= {"hardware": hardware(), "seeds": {"corpus": 1, "pictures": 1, "bootstrap": 12345}}
        record |= {"steps": arguments.steps, "models": record.get("models", {})}
        record["models"][name] = summarise(results) | {"checkpoint": checkpoint}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(record["models"][name], indent=1))


def summarise(results: Sequence[Any]) -> dict[str, Any]:
    """The shares of all measures, from the counts of each sentence or picture."""
    record: dict[str, Any] = {
        "size": len(results),
        "error": round(float(np.mean([r.pop("error") for r in results])), 6),
    }
    for measure in results[0]:
        counts = {name: np.array([result[measure][name] for result in results]) for name in results[0][measure]}
        words = counts.pop("words")
        record[measure] = {"words": int(words.sum())}
        for name, hits in counts.items():
            share = bootstrap(lambda rows, hits=hits: hits[rows].sum() / words[rows].sum(), [np.arange(len(words))])  # noqa: B023
            record[measure][name] = [round(number, 4) for number in (share.value, share.low, share.high)]  # type: ignore[arg-type]
    return record


def count(
    explained: dict[str, Attribution], places: int, truths: dict[int, set[int]], change: Callable[..., Any]
) -> Any:
    """Count the rows whose highest place, of the first `places`, is true, after a change to the values."""
    result: dict[str, float] = {"words": len(truths)}
    for method, attribution in explained.items():
        assert attribution.source is not None
        best = change(attribution.source[:, :places]).argmax(1)
        result[method] = sum(int(best[t]) in truth for t, truth in truths.items())
    result["chance"] = sum(len(truth) / places for truth in truths.values())
    return result


def agreement(explained: dict[str, Attribution], places: int, truths: dict[int, set[int]]) -> Any:
    """Count the rows whose highest place is also the highest by occlusion."""
    occlusion: Any = explained["occlusion"].source
    return count(explained, places, {t: {int(occlusion[t, :places].argmax())} for t in truths}, np.asarray)


def error(attribution: Attribution) -> float:
    """The mean distance in nats of the sum of integrated gradients from what it should be."""
    total = sum(values.sum(1) for values in (attribution.source, attribution.prefix) if values is not None)
    return float(np.abs(total - (attribution.explained - attribution.baseline)).mean())  # type: ignore[operator]


def sentence_trials(translator: Translator, size: int, first: int, steps: int) -> Iterator[Counts]:
    """Yield the counts of each sentence from number `first` on."""
    translator.split = words_and_punctuation
    for pair in toy.generate(seed=1, train=0, valid=0, test=1000)["test"][first:size]:
        sure, possible = parse_pharaoh(pair.alignment)
        target = words_and_punctuation(pair.target)
        explained = {
            method: translator.attribute(pair.source, pair.target, method=method, steps=steps).by_word()
            for method in METHODS
        }
        assert explained["occlusion"].source_tokens is not None
        places = len(explained["occlusion"].source_tokens) - 1  # without <end>, which cannot be taken out
        truths = {j: {i for i, k in sure if k == j} for j in range(len(target)) if any(k == j for _, k in sure)}
        counts: Any = {"words": count(explained, places, truths, np.asarray)}
        counts["magnitude"] = count(explained, places, truths, np.abs)
        counts["occlusion"] = agreement(explained, places, truths)
        nouns = {j: {i for i, k in possible if k == j} - truths.get(j, set()) for j in range(len(target))}
        heads = {
            j: nouns[j] for j in nouns if target[j] in OTHER_GENDER and any(i in nouns[j] and k > j for i, k in sure)
        }
        text, end = explained["occlusion"].example.text, 0
        for word in target[: max(heads, default=-1) + 1]:  # the model does not see what follows the last of these words
            end = pair.target.index(word, end) + len(word)
        contrast = {
            t: translator.target_vocabulary.piece(other)
            for word in {target[j] for j in heads}
            for t, other in other_words(f"{word}/{OTHER_GENDER[word]}", text).items()
            if text.word_indices[t] in heads
        }
        rows = {"attention": explained["attention"].source} if heads else {}
        for method in ("gradient", "integrated", "occlusion") if heads else ():
            found = translator.attribute(pair.source, pair.target[:end], method=method, contrast=contrast, steps=steps)
            assert found.source is not None and found.example.source_text is not None
            columns = found.example.source_text.word_indices
            rows[method] = np.zeros((len(target), places))
            for t in contrast:
                rows[method][text.word_indices[t]] = np.bincount(columns, found.source[t, :-1], places)
        counts["gender"] = {"words": len(heads), "chance": sum(len(head) / places for head in heads.values())}
        for method in METHODS:
            hits = (int(rows[method][j, :places].argmax()) in heads[j] for j in heads)
            counts["gender"][method] = sum(hits)
        yield counts | {"error": error(explained["integrated"])}


def scene_trials(captioner: Captioner, size: int, first: int, steps: int) -> Iterator[Counts]:
    """Yield the counts of each picture from number `first` on."""
    for scene, captions in scenes.generate(seed=1, train=0, valid=0, test=500)["test"][first:size]:
        image = np.asarray(render(scene))
        explained = {method: captioner.attribute(image, captions[0], method=method, steps=steps) for method in METHODS}
        assert explained["occlusion"].tokens[:-1] == [f"▁{word}" for word in words_and_punctuation(captions[0])]
        rows, columns = captioner.grid
        places = rows * columns
        nouns = {
            t: {row * columns + column for row, column in cells(boxes, captioner.grid)}
            for t, boxes in object_words(captions[0], scene)
        }
        counts: Any = {"nouns": count(explained, places, nouns, np.asarray)}
        counts["colours"] = count(explained, places, {t - 1: truth for t, truth in nouns.items()}, np.asarray)
        counts["magnitude"] = count(explained, places, nouns, np.abs)
        counts["occlusion"] = agreement(explained, places, nouns)
        yield counts | {"error": error(explained["integrated"])}


if __name__ == "__main__":
    main()
