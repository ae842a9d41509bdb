"""Checks examples while a corpus is prepared: what `prepare` warns of, and what `data.clean` leaves out of training.

All training examples are compared with the held-out and the earlier ones, by hashes of 64 bits, and the two sides of
all pairs by their lengths. What takes longer is looked for in a sample or, if `data.clean` names it, in all training
examples. A problem is reported if more than `MIN_SHARE` of a split's examples have it; a held-out example in training,
always. checking.yaml has the kinds of problems.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from seqtool.data.corpora.corpus import Corpus, ImageCorpus
from seqtool.data.text.languages import SCRIPTS, code_of, language_of
from seqtool.errors import InputError, printable
from seqtool.runtime.files import sync
from seqtool.runtime.log import log

if TYPE_CHECKING:
    from seqtool.data.preparation import Steps, Texts

KINDS: dict[str, list[str]] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
BLOCK, SAMPLE_FIRST, SAMPLE_EVERY = 1_000, 5_000, 50  # examples; the sample is the first 5,000 and then each fiftieth
MIN_SHARE = 0.01  # of the examples
# Bloom filters for different examples: the logarithms of their bits (32 and 128 MB), the number of examples that the
# first takes, and after which the second is full, and the bits that each example sets.
FILTERS, ROOM, PROBES = (28, 30), (4_000_000, 66_000_000), 12
MIN_CHARACTERS = 40  # shorter lines of a running text, such as the names of speakers in a play, recur anyway
MAX_RATIO = 3  # of the sides' lengths in characters, relative to the usual ratio, if one has MIN_CHARACTERS
# A side is shifted if so many pairs have such a correlation of the sides' lengths with one side moved, and so much less
# without. Sides in step have about 0.9.
MIN_SHIFTED, MIN_CORRELATION, MIN_GAIN, SHIFT_BLOCK = 200, 0.5, 0.3, 250
PATTERNS = {"segmented": re.compile(r"@@( |$)|@-@|[▁￭]"), "escaped": re.compile(r"&([a-z]{2,6}|#\d+|#x[0-9a-fA-F]+);")}
SAMPLED = *PATTERNS, "swapped", "language"

Flags = NDArray[np.bool_]
Hashes = NDArray[np.int64]
LAST_HASH: Hashes = np.array([2**63 - 1])  # ends sorted hashes, so that each hash has a place among them


def check_names(clean: Sequence[str], corpus: Corpus) -> None:
    """Raise InputError unless these are kinds of problems that can be found in the corpus."""
    data = ["any", "pairs", "languages"][: 1 + (len(corpus.sides) == 2) + bool(_languages(corpus))]
    data += ["images"] * isinstance(corpus, ImageCorpus)
    kinds = [kind for kind, (needed, *_) in KINDS.items() if needed in data]
    if others := [kind for kind in clean if kind not in kinds]:
        languages = " (the languages of the data are not known)" * (data[-1] == "pairs")
        raise InputError(f"Unknown data.clean '{others[0]}'{languages}; choose from {', '.join(kinds)}.")


def report(findings: Sequence[dict[str, Any]], *, strict: bool) -> None:
    """Warn of what was found or, if `strict`, refuse it with an InputError."""
    if strict and (problems := "; ".join(finding["problem"] for finding in findings)):
        raise InputError(f"data.strict=true refuses these data: {problems}: correct them, or see data.clean.")
    for finding in findings:
        log.warning("%s: %s.", finding["problem"], finding["advice"])


def mark(examples: Iterable["Texts"], left_out: Path) -> Iterator[tuple["Texts", str]]:
    """Yield the training examples, each with the reason to leave it out, or an empty text."""
    with (left_out if left_out.exists() else Path(os.devnull)).open() as file:
        entries = chain(((int(line), why) for line, why in map(str.split, file)), repeat((0, "")))
        number, reason = 0, ""
        for i, example in enumerate(examples, start=1):
            if number < i:
                number, reason = next(entries)
            yield example, reason * (number == i)


class Checks:
    """The checks of a corpus: first `watch` each held-out split to its end, and then the split `train`."""

    def __init__(self, steps: "Steps", left_out: Path) -> None:
        """left_out: the file for the numbers, from 1, of the training examples that are left out, and the reasons"""
        self.findings: list[dict[str, Any]] = []  # kind, split, count, total, the problem with an example, and advice
        self._steps, self._left_out, self._codes = steps, left_out, _languages(steps.corpus)
        self._memory = Memory()
        self._held_out: dict[str, list[Hashes]] = {}  # by split, of its examples or, if they have images, of these

    def watch(self, split: str) -> Iterator[tuple["Texts", str]]:
        """Yield the texts of a split's examples, each with the reason to leave it out, or an empty text."""
        steps, is_train, start = self._steps, split == "train", 0
        examples, digests, images = iter(steps.texts(split)), steps.image_digests(split), steps.image_of(split)
        is_unusual = None  # whether the image of each caption has another number of captions than most images
        if is_train and images is not None:
            captions = np.bincount(images)
            often = np.bincount(captions)
            is_unusual = (captions != np.flatnonzero(often == often.max())[-1])[images]
        known = {name: np.unique(np.concatenate([*keys, LAST_HASH])) for name, keys in self._held_out.items()}
        is_in_training = {name: np.zeros(len(keys), bool) for name, keys in known.items()}
        clean = steps.settings.clean if is_train else []
        counts, totals = Counter[str](), Counter[str]()  # by kind
        samples: dict[str, str] = {}  # an example of each kind
        ratios = np.empty(0)  # of the sides' lengths, in this block and the one before
        while block := list(islice(examples, BLOCK)):
            lengths = np.array([list(map(len, side)) for side in zip(*block, strict=True)])
            is_counted = lengths.min(axis=0) >= steps.shortest
            found = {}
            if len(lengths) == 2:
                ratios = np.append(ratios[-BLOCK:], np.diff(np.log(np.maximum(lengths, 1)), axis=0))
                found = _compare_sides(block, lengths, ratios, is_counted)
            step = 1 if start < SAMPLE_FIRST or {*SAMPLED} & {*clean} else SAMPLE_EVERY
            problems = [_problems(texts, self._codes) for texts in block[::step]]
            found |= {kind: np.array([kind in line for line in problems]) for kind in SAMPLED}
            hashes = keys = _hashes(map("\n".join, block))
            if is_unusual is not None:
                found["captions"] = is_unusual[start : start + len(block)]
            if digests:
                keys = _hashes(digests[start : start + len(block)])
                hashes = hashes ^ keys
            if is_train:
                found["duplicates"] = self._memory.add(hashes) & is_counted
                for name, known_keys in known.items():
                    places = np.searchsorted(known_keys, keys)
                    found[f"held_out {name}"] = is_known = (known_keys[places] == keys) & is_counted
                    is_in_training[name][places[is_known]] = True
            else:
                self._held_out.setdefault(split, []).append(keys[is_counted])
            for key, flags in found.items():
                counts[key] += int(np.count_nonzero(flags))
                totals[key] += int(np.count_nonzero(is_counted)) if key == "duplicates" else len(flags)
                if key not in samples and flags.any():
                    i = int(np.argmax(flags)) * (step if key in SAMPLED else 1)
                    more = ""
                    if key == "shifted":
                        shift = _shifts(lengths)[i]
                        i += max(0, -(start + i + shift))  # a line whose target exists
                        more = f" (its target is line {start + i + 1 + shift:,})"
                    more += " of train" * key.startswith("held_out")
                    samples[key] = f"{steps.place(split, start + i)}{more}, {_quote(block[i])}"
            reasons = dict[int, str]()
            if clean:
                rows = {kind: [flags for key, flags in found.items() if key.startswith(kind)] for kind in clean}
                reasons = {int(i): kind for kind in reversed(clean) for i in np.flatnonzero(np.any(rows[kind], axis=0))}
                with self._left_out.open("a") as file:
                    file.writelines(f"{start + i + 1} {kind}\n" for i, kind in sorted(reasons.items()))
                    sync(file)
            start += len(block)
            yield from ((texts, reasons.get(i, "")) for i, texts in enumerate(block))
        for key, number in counts.items():
            kind, _, name = key.partition(" ")
            total, unit = totals[key], f"{'sampled ' * (kind in SAMPLED and totals[key] < start)}{steps.unit}"
            if name:
                unit = f"different {steps.unit if images is None else 'images'}"
                number, total = int(np.count_nonzero(is_in_training[name])), len(is_in_training[name]) - 1
            only_long = f" with {steps.shortest} characters or more" if steps.shortest > 1 else ""
            of = f"{unit} of {name or split}{only_long * bool(name or kind == 'duplicates')}"
            if kind not in clean and number > (0 if name else MIN_SHARE * total):
                clause, advice = KINDS[kind][1:]
                problem = f"{number:,} of {total:,} {of} ({number / total:.2%}) {clause}"
                advice += f"; data.clean={kind} leaves them out of training" * is_train
                finding = {"kind": kind, "split": name or split, "count": number, "total": total, "advice": advice}
                self.findings.append({**finding, "problem": f"{problem}, such as {samples[key]}"})


class Memory:
    """The different examples so far, by their hashes, in Bloom filters (Bloom 1970).

    In ten million examples, the probability that even one new one seems to be a repetition is below 1 in 400. When the
    second filter is full, with half of its bits set, no more examples are remembered, and 1 new one in 2^12 seems to be
    a repetition.
    """

    def __init__(self) -> None:
        self._filters: list[NDArray[np.uint8]] = []
        self._size = 0  # the number of different examples

    def add(self, hashes: Hashes) -> Flags:
        """Add examples. Returns whether each was there before, or earlier among them."""
        if len(self._filters) < len(FILTERS) and self._size >= (0, *ROOM)[len(self._filters)]:
            self._filters.append(np.zeros(1 << FILTERS[len(self._filters)] - 3, np.uint8))
        new, first = np.unique(hashes, return_index=True)
        is_new = np.ones(len(new), bool)
        bits = (new & 0xFFFFFFFF) + np.arange(PROBES)[:, None] * (new >> 32 | 1)
        masks = (1 << (bits & 7)).astype(np.uint8)
        for table in self._filters:
            places = (bits >> 3) % len(table)
            is_new &= (table[places] & masks == 0).any(axis=0)
        if self._size < ROOM[-1]:
            np.bitwise_or.at(table, places[:, is_new], masks[:, is_new])
        self._size += int(np.count_nonzero(is_new))
        is_repeated = np.ones(len(hashes), bool)
        is_repeated[first[is_new]] = False
        return is_repeated


def _hashes(texts: Iterable[str]) -> Hashes:
    """Hashes of 64 bits, the same on every machine."""
    digests = (blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<i8")


def _compare_sides(
    block: Sequence["Texts"], lengths: NDArray[np.int64], ratios: NDArray[np.float64], is_counted: Flags
) -> dict[str, Flags]:
    """Look for problems in the sides of a block of N pairs.

    lengths: 2×N characters
    ratios: the logarithms of the lengths' ratios, with those of pairs before the block; their median is the usual ratio
    is_counted: pairs with two sides
    """
    is_same = np.array([source == target for source, target in block])
    is_far = np.abs(ratios[-len(block) :] - np.median(ratios)) > np.log(MAX_RATIO)
    is_far &= lengths.max(axis=0) >= MIN_CHARACTERS
    shifted = _shifts(lengths) != 0
    return {"identical": is_same & is_counted, "lengths": is_far & is_counted & ~shifted, "shifted": shifted}


def _shifts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """By how many lines the target of each pair comes later than its source: `_shift` of the whole block or, if this is
    0, of each of its parts of `SHIFT_BLOCK` pairs. lengths: 2×N characters
    """
    shifts = np.full(lengths.shape[1], _shift(lengths))
    if not shifts.any():
        for start in range(0, len(shifts), SHIFT_BLOCK):
            part = slice(start, start + SHIFT_BLOCK)
            shifts[part] = _shift(lengths[:, part])
    return shifts


def _shift(lengths: NDArray[np.int64]) -> int:
    """By how many lines the targets of a block come later than their sources; 0 if this is not clear.

    The lengths of sentences and of their translations correlate (Gale and Church 1993), so the shift is where the
    correlation of their logarithms is highest, with the block taken as a circle. lengths: 2×N characters
    """
    logarithms = np.log1p(lengths)
    x, y = logarithms - logarithms.mean(axis=1, keepdims=True)
    norm = np.sqrt((x @ x) * (y @ y))
    if len(x) < MIN_SHIFTED or norm < 1e-6:
        return 0
    correlations = np.fft.irfft(np.conj(np.fft.rfft(x)) * np.fft.rfft(y), len(x)) / norm
    best = int(np.argmax(correlations))
    if correlations[best] < max(MIN_CORRELATION, correlations[0] + MIN_GAIN):
        return 0
    return best if 2 * best <= len(x) else best - len(x)


def _languages(corpus: Corpus) -> list[str]:
    """The codes of the languages of sentence pairs; an empty list for other data, and if one is not in `SCRIPTS`."""
    codes = [code_of(str(name)) for name in getattr(corpus, "languages", ())]
    return codes if len(codes) == 2 and SCRIPTS.keys() >= set(codes) else []


def _problems(texts: "Texts", codes: Sequence[str]) -> list[str]:
    """The kinds of problems, of those in `SAMPLED`, that an example has. codes: the languages of its sides, if known"""
    problems = [kind for kind, pattern in PATTERNS.items() if any(map(pattern.search, texts))]
    languages = list(map(language_of, texts, codes))
    if all(map(_fits, languages, codes)) or texts[0] == texts[1]:
        return problems
    is_swapped = codes[0] != codes[1] and None not in languages and all(map(_fits, languages, codes[::-1]))
    return [*problems, "swapped" if is_swapped else "language"]


def _fits(language: str | None, code: str) -> bool:
    """Whether a text, of which `language_of` found this, may be in the language with this code."""
    return language in (None, code, *SCRIPTS[code])


def _quote(texts: Sequence[str]) -> str:
    """The beginning of each text, for messages."""
    size = 60 // len(texts)
    return f"“{printable(' | '.join(text[:size] + '…' * (len(text) > size) for text in texts))}”"
