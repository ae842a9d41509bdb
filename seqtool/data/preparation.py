"""Preparing a corpus: vocabularies learnt, every sentence encoded once, into a cache that runs share."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import sentencepiece

from seqtool.data.cache import FORMAT, WORDS, Cache
from seqtool.data.columns import ColumnsWriter
from seqtool.data.configuration import C, CacheSettings, cache_settings, make_corpus
from seqtool.data.corpora.corpus import Corpus
from seqtool.data.digests import Digests
from seqtool.data.directories import make_once, place, versions
from seqtool.data.steps import Steps
from seqtool.data.text import unknown
from seqtool.data.text.encoding import Texts, encode, token_type
from seqtool.data.text.scripts import characters, writing
from seqtool.data.text.vocabulary import Vocabulary, is_listed, load_all, save_all
from seqtool.data.text.vocabulary_training import train
from seqtool.data.text.words import words
from seqtool.errors import InputError
from seqtool.runtime.files import write_whole
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.unfinished import SHARD, Unfinished
from seqtool.settings import Config

SEED = 0  # for the sample that SentencePiece learns from
LOOKED_AT, LONGEST_LOOKED_AT = 1_000, 10_000  # training examples, to see how they are written, and characters of each
COUNTED = 1_000_000  # training examples whose words are counted, so that memory does not grow with the corpus
log = logging.getLogger("seqtool")


def prepare(
    config: Config,
    kind: type[C],
    make_steps: Callable[[C, CacheSettings], Steps],
    *,
    needs: Sequence[str] = (),
    trusted: bool = True,
) -> Cache:
    """The cache of the corpus of this `kind` that `config`, the settings under `data`, describes; made if it does
    not exist. `make_steps` is called once the corpus's files exist.

    Raises InputError for a corpus without the splits that are needed, before any is read, and for text or images that
    cannot be used, or that change meanwhile; then nothing is left behind.
    If anything else interrupts it, the next call resumes. If another process is making the same
    cache, this one waits. Not `trusted`: settings from a checkpoint, for which the corpus downloads and makes nothing.
    """
    settings = cache_settings(config)
    corpus = make_corpus(config, kind, trusted=trusted)
    vocabulary = _vocabulary_wanted(settings, corpus)  # a wrong one is refused before anything is read or made
    root = Path(settings.cache)
    root.mkdir(parents=True, exist_ok=True)
    corpus.fetch() if trusted else corpus.check()
    if missing := [split for split in needs if split not in corpus.splits()]:
        raise InputError(
            f"The data have no split '{missing[0]}', only {', '.join(corpus.splits())}: name its files with "
            f"data.{missing[0]}=, or set data.{missing[0]}_share above 0, where these data have such a setting."
        )
    digests = Digests(root / "digests.json")
    text = corpus.fingerprint(digests)  # before it is read
    steps = make_steps(corpus, settings)
    inputs = {
        "format": FORMAT,
        "corpus": corpus.name,
        **steps.inputs,
        "text": text,
        "vocabulary": vocabulary,
        "limits": asdict(settings.limits),
    }
    directory = place(root, steps.name, inputs)

    def fill(unfinished: Path) -> dict[str, Any]:
        with digests.unchanged():
            return {**_fill(unfinished, steps), "inputs": inputs}

    made = make_once(directory, fill)
    cache = Cache(directory, steps.store)
    if made:
        steps.made(directory)
    else:
        _warn_of_words(steps, cache.summary.get("without_spaces", []))
    return cache


def _vocabulary_wanted(settings: CacheSettings, corpus: Corpus) -> Any:
    """What the cache depends on of its vocabularies: the settings for new ones, or the hashes of those to reuse. Raises
    InputError for vocabularies of other data.
    """
    if settings.vocabulary.reuse is None:
        return asdict(settings.vocabulary)
    reused = load_all(Path(settings.vocabulary.reuse), corpus.sides)
    if any(one.verbatim != corpus.verbatim for one in reused.values()):
        wanted = "keeps" if corpus.verbatim else "does not keep"
        raise InputError(
            f"data.vocabulary.reuse={settings.vocabulary.reuse} is a vocabulary for other data: wanted is one that "
            f"{wanted} white space as it is."
        )
    fingerprints = [one.fingerprint for one in reused.values()]
    return fingerprints if len(fingerprints) > 1 else fingerprints[0]


def _fill(directory: Path, steps: Steps) -> dict[str, Any]:
    """Write everything in the cache but its summary, which is returned. All text is read once beforehand."""
    unfinished, sides = Unfinished(directory), steps.corpus.sides
    unspaced = _without_spaces(steps)
    _warn_of_words(steps, unspaced)
    counts = unfinished.known.get("counts")
    if counts is None:
        split_up = characters if "target" in unspaced else words
        counts = {split: sum(1 for _ in _counted(directory, steps, split, split_up)) for split in steps.corpus.splits()}
        save_all(directory, _vocabularies(steps, counts["train"]))
        unfinished.note(counts=counts)
    splits = {}
    with progress_bar(total=sum(counts.values()), unit=f" {steps.unit}", description="Encoding") as bar:
        for split, count in counts.items():
            splits[split] = _write_split(directory, steps, split, count, unfinished, bar.update)
            _name_unknown(directory, steps, split, splits[split])
    return {
        "corpus": steps.corpus.name,
        **steps.summary(directory),
        **_described(load_all(directory, sides)),
        **({"without_spaces": unspaced} if unspaced else {}),
        "splits": splits,
        "format": FORMAT,
        "versions": versions(sentencepiece=sentencepiece.__version__),
    }


def _without_spaces(steps: Steps) -> list[str]:
    """The sides whose first training examples are in a script without spaces between words."""
    first = islice(steps.texts("train"), LOOKED_AT)
    sides = zip(*([text[:LONGEST_LOOKED_AT] for text in texts] for texts in first), strict=True)
    return [side for side, texts in zip(steps.corpus.sides, sides, strict=False) if writing(texts).has_no_spaces]


def _warn_of_words(steps: Steps, unspaced: Sequence[str]) -> None:
    settings = steps.settings.vocabulary
    if unspaced and settings.kind == "word" and settings.reuse is None:
        what = f"The {' and '.join(unspaced)} text" if len(steps.corpus.sides) > 1 else f"The {steps.training}"
        log.warning(
            "%s: almost no spaces between words, so that a whole sentence is one word (1.0 tokens): set "
            "data.vocabulary.kind=char, or unigram.",
            what,
        )


def _counted(directory: Path, steps: Steps, split: str, split_up: Callable[[str], list[str]]) -> Iterator[Texts]:
    """The texts of a split. How often each word stands in the targets to train on is written beside the splits."""
    if split != "train" or steps.verbatim:
        yield from steps.texts(split)
        return
    counts: Counter[str] = Counter()
    for number, texts in enumerate(steps.texts(split)):
        if number < COUNTED:
            counts.update(split_up(texts[-1]))
        yield texts
    lines = (f"{count}\t{word}\n" for word, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))
    write_whole(directory / WORDS, "".join(lines).encode())


def _vocabularies(steps: Steps, count: int) -> dict[str, Vocabulary]:
    """Vocabularies: reused ones, or new ones learnt from the `count` training examples or a sample of them."""
    settings, sides = steps.settings.vocabulary, steps.corpus.sides
    if settings.reuse is not None:
        return load_all(Path(settings.reuse), sides)
    sample: list[Texts] | None = None
    if not is_listed(settings.kind, verbatim=steps.verbatim) and settings.sample is not None:  # a list needs no memory
        chosen = frozenset(random.Random(SEED).sample(range(count), min(settings.sample, count)))
        sample = [texts for i, texts in enumerate(steps.texts("train")) if i in chosen]

    def examples() -> Iterable[Texts]:
        return steps.texts("train") if sample is None else sample

    if settings.joint or len(sides) == 1:
        return dict.fromkeys(sides, train(chain.from_iterable(examples()), settings, verbatim=steps.verbatim))
    return {side: train((texts[i] for texts in examples()), settings, side=side) for i, side in enumerate(sides)}


def _name_unknown(directory: Path, steps: Steps, split: str, counts: dict[str, Any]) -> None:
    """Add the commonest unknown pieces to the counts of a split's sides that have many."""
    for column, (side, vocabulary) in enumerate(load_all(directory, steps.corpus.sides).items()):
        entry = counts.get(side, counts)
        if unknown.is_much(entry):
            texts = [example[column] for example in islice(steps.texts(split), unknown.READ)]
            pieces = Counter(chain.from_iterable(unknown.unknown_pieces(texts, vocabulary)))
            entry["commonest_unknown"] = unknown.commonest(pieces)


def _described(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """The vocabularies' entry in the summary, by side if there are two."""
    first, *others = vocabularies.values()
    if not others:
        return {"vocabulary": {"kind": first.kind, "size": len(first)}, "token_type": token_type(first).str}
    sizes = {side: len(known) for side, known in vocabularies.items()}
    return {
        "vocabulary": {"kind": first.kind, **sizes, "joint": first is others[0]},
        "token_types": {side: token_type(known).str for side, known in vocabularies.items()},
    }


def _write_split(
    directory: Path, steps: Steps, split: str, count: int, unfinished: Unfinished, update: Callable[[int], object]
) -> dict[str, Any]:
    """Write the files of a split of `count` examples; returns their counts.

    The limits apply only to training examples: other splits are scored in full. Only training examples are so many
    that it pays to resume in the middle of them.
    """
    settings, is_train = steps.settings, split == "train"
    nothing = {"read": 0, "dropped": {}}
    begun: Mapping[str, Any] = unfinished.known.get("train", nothing) if is_train else nothing
    read = begun["read"]
    texts = steps.texts(split)
    if read:
        log.info(
            "Going on after %s %s, which a preparation that was ended early has left.", f"{read:,}", steps.training
        )
        texts = islice(texts, read, None)
        update(read)
    texts = steps.kept(directory, split, texts)
    limits = settings.limits if is_train else None
    dropped: Counter[str] = Counter(begun["dropped"])
    written = ColumnsWriter(directory / split, steps.corpus.sides, image_of=steps.image_of(split), begun=begun)
    chunks = encode(texts, directory, steps.corpus.sides, limits, count=count - read, processes=settings.processes)
    with closing(chunks), unfinished.noting("train", written.keep) as reached:
        for chunk in chunks:
            written.write(chunk)
            dropped += chunk.dropped
            update(len(chunk.kept))
            read += len(chunk.kept)
            if is_train:
                so_far = {"read": read, "dropped": dict(dropped), **written.counts}
                reached(so_far, due=read % SHARD == 0 or read == count)
    dropped = steps.dropped(split) + dropped
    kept = written.counts["target"]["sentences"]
    if not kept:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise InputError(f"None of the {count:,} {steps.training} is within data.limits: {reasons}.")
    sides: dict[str, Any] = {
        side: {name: one[name] for name in ("tokens", "unknown")} for side, one in written.counts.items()
    }
    counts = {steps.unit: kept, **(sides if len(sides) > 1 else sides["target"])}
    return {**steps.split_summary(split, counts), "dropped": dict(sorted(dropped.items()))}
