"""`seqtool score`: give the log-probability of translations or texts under a model. `seqtool rescore`: choose again
from n-best lists, by the scores of further models.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

import seqtool
from seqtool.data.text.vocabulary import report_unknown
from seqtool.errors import InputError, counted
from seqtool.models.tokens import UNK
from seqtool.predict.generator import Generator
from seqtool.predict.reading import count_lines, windows
from seqtool.predict.translator import Translator, check_directions
from seqtool.predict.writing import OutputSettings, ScoreWriter
from seqtool.runtime import distributed, files
from seqtool.runtime.devices import keep_memory, make_default
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.training.checkpoint import find

LINES_PER_WINDOW = 1000
MODELS: dict[str, Any] = {"checkpoint": Translator, "reverse": Translator, "lm": Generator}  # settings of `rescore`


@dataclass
class ScoreSettings(declarations.Score, OutputSettings):
    """The settings of configs/score.yaml for input and output."""

    def inputs(self) -> dict[str, str]:
        """The input files, by the names of their settings."""
        paths = {"sources": self.sources, "references": self.references}
        return {name: path for name, path in paths.items() if path is not None}

    def count(self) -> int:
        """The number of lines in each input. Raises InputError if the inputs differ in length or are empty."""
        (name, count), *counts = ((f"{name}={path}", count_lines(path) or 0) for name, path in self.inputs().items())
        for other_name, lines in counts:
            if lines != count:
                raise InputError(
                    f"{name} has {count:,} lines but {other_name} has {lines:,}: they must be parallel, line by line."
                )
        if not count:
            raise InputError(f"{name} is empty: it must have one text on each line.")
        return count


def score(config: DictConfig) -> None:
    """Score lines. Only their scores are written to standard output."""
    model_settings = {name: config[name] for name in declarations.declared(declarations.InferenceMachine)}
    settings = typed(ScoreSettings, {setting.name: config[setting.name] for setting in fields(ScoreSettings)})
    files.check_outputs(
        {"output": settings.output, "alignments": settings.alignments},
        ((f"{name}={path}", path) for name, path in settings.inputs().items()),
    )
    with distributed.group():
        total = distributed.from_first(settings.count)
        keep_memory()
        model: Any = seqtool.load(names(config.checkpoint), trust=modules(config.trust), **model_settings)
        make_default(model.device)
        model.check_scoring(with_sources=settings.sources is not None)
        with ScoreWriter(settings, model).opened() as writer:
            _score_lines(settings, model, writer, total)


def _score_lines(settings: ScoreSettings, model: Any, writer: ScoreWriter, total: int) -> None:
    """Score the lines window by window, and print a summary and the words that the model does not know."""
    nats, tokens = 0.0, 0
    unknown_words = {"sources": Counter[str](), "references": Counter[str]()}
    text_windows = windows(settings.references, LINES_PER_WINDOW)
    source_windows = repeat(None) if settings.sources is None else windows(settings.sources, LINES_PER_WINDOW)
    with writer.progress("score", lambda: total) as bar:
        for sources, texts in zip(source_windows, text_windows, strict=settings.sources is not None):
            writer.warn_of_no_spaces(sources or [], texts)
            predictions: Sequence[Any] = model.forced(sources, texts, likeliest=settings.likeliest)
            for source, prediction in zip(sources or [""] * len(texts), predictions, strict=True):
                nats -= prediction.log_probability
                tokens += len(prediction.log_probabilities or ())
                inputs = prediction.inputs()
                unknown_words["sources"].update(inputs.get("source_unknown", ()))
                unknown_words["references"].update(inputs["unknown"])
                writer.write(source, [prediction])
            bar.update(len(texts))
    if not tokens:
        raise InputError(f"references={settings.references} has only empty lines: there is nothing to score.")
    loss = nats / tokens
    perplexity = math.exp(min(loss, 700))  # the exponential of more than 709 overflows
    size = f"{counted(writer.count, 'line')}, {counted(tokens, 'token')}"
    print(f"{size}: {loss:.4f} nats a token, perplexity {perplexity:.2f}", file=sys.stderr)
    for side, counts in unknown_words.items():
        report_unknown(counts, f"of the {side}")


@distributed.group()
def rescore(config: DictConfig) -> None:
    """Choose again from the lists, which several processes score together. Only the first process tunes and writes;
    standard output has texts or records alone.
    """
    # imported here because `score` does not need sacreBLEU
    from seqtool.evaluation.translations import read_records, read_translations
    from seqtool.metrics.translation import Bleu, bleu_parts, check_lengths, fitting_tokeniser, lengths, tune

    settings = typed(declarations.Rescore, config)
    declarations.check_values(settings)
    paths = {name: names(config[name]) for name in ("nbest", "weights", "tune", *MODELS)}
    inputs = ((f"{name}={path}", path) for name in ("nbest", "weights", "tune") for path in paths[name])
    outputs = {"output": settings.output, "save_weights": settings.save_weights}
    files.check_outputs(outputs, inputs)
    for path in filter(None, outputs.values()):
        files.check_writable(Path(path))
    if twice := [f"{kind}={path}" for kind in MODELS for path in paths[kind] if paths[kind].count(path) > 1]:
        raise InputError(f"rescore has {twice[0]} twice: name each model once.")
    if bool(paths["weights"]) == bool(paths["tune"]):
        raise InputError("rescore needs either weights=FILE or numbers, or tune=FILE, the references of the lists.")
    models = [(kind, path) for kind in MODELS for path in paths[kind]]
    labels = ["search", *(f"{kind}={path}" for kind, path in models), "length"]
    opened = {f"{kind}={path}": find(path, trust=modules(config.trust), purpose="record") for kind, path in models}
    check_directions({name: checkpoint for name, checkpoint in opened.items() if not name.startswith("lm=")})
    weights = _read_weights(paths["weights"], labels) if paths["weights"] else np.empty(0)
    lists = read_records(settings.nbest, files.read_lines(Path(settings.nbest)), _checked_list)
    references = [read_translations(path) for path in paths["tune"]]
    check_lengths(lists, references, name=settings.nbest, reference_names=paths["tune"])
    size = max(len(n_best["translations"]) for n_best in lists)  # to which shorter lists are filled by repetition
    hypotheses = [hypothesis for n_best in lists for hypothesis in (n_best["translations"] * size)[:size]]
    sources, texts = [n_best["source"] for n_best in lists for _ in range(size)], [text["text"] for text in hypotheses]
    keep_memory()
    columns = [[text["score"] for text in hypotheses], lengths(texts)[0]]
    columns[1:1] = [_log_probabilities(*model, sources, texts, config) for model in models]
    if not distributed.is_first():
        return
    scores = np.array(columns, float).T.reshape(len(lists), size, -1)
    if references:
        tokenize, _ = fitting_tokeniser(chain.from_iterable(references))
        repeated = [lines for lines in zip(*references, strict=True) for _ in range(size)]
        statistics = Bleu(repeated, tokenize=tokenize, lowercase=False).statistics(texts).reshape(len(lists), size, -1)
        bleu, weights = tune(scores, statistics)
        before = bleu_parts(statistics[:, 0]).score
        named = ", ".join(f"{label} {weight:.4g}" for label, weight in zip(labels, weights, strict=True))
        print(f"BLEU {before:.2f} before, {bleu:.2f} with the weights: {named}", file=sys.stderr)
    if settings.save_weights is not None:
        content = files.finite_json(dict(zip(labels, weights, strict=True)), indent=1)
        files.write_whole(Path(settings.save_weights), f"{content}\n".encode())
    with nullcontext(sys.stdout) if settings.output is None else files.replacing(Path(settings.output)) as out:
        for n_best, rows, totals in zip(lists, scores.tolist(), (scores @ weights).tolist(), strict=True):
            for hypothesis, row, total in zip(n_best["translations"], rows, totals, strict=False):
                hypothesis |= {"score": total, "scores": dict(zip(labels, row, strict=True))}
            n_best["translations"].sort(key=lambda hypothesis: -hypothesis["score"])  # equals keep their order
            text = n_best["translations"][0]["text"] if settings.format == "text" else files.finite_json(n_best)
            out.write(f"{text}\n")


def _checked_list(record: Any) -> Any:
    """The record of an n-best list. Raises ValueError, TypeError or LookupError for anything else."""
    files.check_plain(record)
    texts = [record["source"], *(hypothesis["text"] for hypothesis in record["translations"])]
    is_finite = np.isfinite([hypothesis["score"] for hypothesis in record["translations"]]).all()
    if len(texts) < 2 or {*map(type, texts)} != {str} or "\n" in "".join(texts) or not is_finite:
        raise ValueError
    return record


def _read_weights(values: Sequence[str], labels: Sequence[str]) -> NDArray[np.float64]:
    """The weights in a file, if there is a single value, or numbers in the order of the labels."""
    if len(values) == 1 and values[0].strip("-").replace(".", "", 1).isdecimal():
        raise InputError(f"weights={values[0]} must have a number for each of {', '.join(labels)}.")
    try:
        numbers = files.read_record(Path(values[0])) if len(values) == 1 else dict(zip(labels, values, strict=True))
        weights = np.array([float(numbers.pop(label)) for label in labels])
        if numbers or not np.isfinite(weights).all():
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"weights={','.join(values)} must have a number for each of {', '.join(labels)}.") from error
    return weights


def _log_probabilities(kind: str, path: str, sources: list[str], texts: list[str], config: DictConfig) -> list[float]:
    """What a model gives to each pair or text, in nats. kind: the setting that names the model, a key of `MODELS`"""
    name = f"{kind}={path}"
    machine = {name: config[name] for name in declarations.declared(declarations.InferenceMachine)}
    model = MODELS[kind].load(path, trust=modules(config.trust), **machine)
    sides = {"source": sources, "target": texts} if kind != "reverse" else {"source": texts, "target": sources}
    for side in model.sides:
        ids = [*chain.from_iterable(getattr(model, f"{side}_vocabulary").encode_batch(sides[side]))]
        if 2 * ids.count(UNK) > len(ids):
            raise InputError(f"{name} does not know most words of its {side} side: is it for these languages?")
    result: list[float] = []
    with progress_bar(total=len(texts), unit="text", description=name) as bar:
        for window in (slice(start, start + LINES_PER_WINDOW) for start in range(0, len(texts), LINES_PER_WINDOW)):
            try:
                forced = model.forced(None if kind == "lm" else sides["source"][window], sides["target"][window])
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
            result += [prediction.log_probability for prediction in forced]
            bar.update(len(forced))
    return result
