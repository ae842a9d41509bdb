"""Preparing a corpus: vocabularies learnt, every sentence encoded once, into a cache that runs share."""

import hashlib
import json
import os
import platform
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import sentencepiece
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

import seqtool
from seqtool.config import Config, build, typed
from seqtool.data.cache import FORMAT, SUMMARY, Cache, SideWriter, copied, write_lines
from seqtool.data.digests import Digests
from seqtool.data.encoding import LimitSettings, Pair, encode, token_type
from seqtool.data.translation import Corpus
from seqtool.data.vocabulary import Vocabulary, load_pair, save_pair
from seqtool.data.vocabulary_training import VocabularySettings, train
from seqtool.errors import InputError

SEED = 0  # of the sample that SentencePiece learns from


@dataclass
class CacheSettings:
    """The settings of `data` that are not the corpus's own.

    cache: the directory that caches are made in. processes: how many encode; null is one a CPU, up to 8.
    """

    vocabulary: VocabularySettings
    limits: LimitSettings
    cache: str
    processes: int | None

    def check(self) -> None:
        """Raise InputError on values that cannot be used."""
        self.vocabulary.check()
        self.limits.check()
        if self.processes is not None and self.processes < 1:
            raise InputError(f"data.processes is {self.processes} but must be at least 1.")


OWN = frozenset(one.name for one in fields(CacheSettings))


def make_corpus(config: Config, *, trusted: bool) -> Corpus:
    """The corpus that `config`, the settings under `data`, describes; its files are not yet looked at.

    Not `trusted`: a configuration out of a checkpoint, which may only name corpora of this package.
    """
    corpus: Corpus = build(_part(config, own=False), trusted=trusted)
    return corpus


def prepare_cache(config: Config, *, trusted: bool = True) -> Cache:
    """The cache of the corpus that `config`, the settings under `data`, describes; made if it is not there.

    Raises InputError on settings or text that cannot be used; then nothing is left behind. A process that
    finds another one making the same cache waits for it. `trusted` as for `make_corpus`.
    """
    settings = typed(CacheSettings, _part(config, own=True))
    settings.check()
    corpus = make_corpus(config, trusted=trusted)
    root = Path(settings.cache)
    root.mkdir(parents=True, exist_ok=True)
    corpus.fetch()
    inputs = _inputs(corpus, settings, Digests(root / "digests.json"))
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    name = "-".join((corpus.name, corpus.source_language, corpus.target_language, digest))
    directory = root / re.sub(r"[^\w.-]+", "_", name)
    if not directory.exists():
        with _locked(directory):
            if not directory.exists():
                _make(directory, corpus, settings, inputs)
    return Cache(directory)


def _part(config: Config, *, own: bool) -> Config:
    """The settings of the cache itself, or the others: the corpus's."""
    unwanted = [name for name in config if (name in OWN) != own]
    if not isinstance(config, DictConfig):
        return {str(name): value for name, value in config.items() if name not in unwanted}
    part = config.copy()  # which knows its full name, for messages
    OmegaConf.set_struct(part, False)
    OmegaConf.set_readonly(part, False)
    for name in unwanted:
        del part[name]
    return part


def _inputs(corpus: Corpus, settings: CacheSettings, digest: Digests) -> dict[str, Any]:
    """Everything that the cache depends on: what its name is the hash of."""
    vocabulary: Any = asdict(settings.vocabulary)
    if settings.vocabulary.reuse is not None:
        vocabulary = [one.fingerprint for one in _reused(settings.vocabulary.reuse)]
    return {
        "format": FORMAT,
        "corpus": corpus.name,
        "languages": [corpus.source_language, corpus.target_language],
        "text": corpus.fingerprint(digest),
        "vocabulary": vocabulary,
        "limits": asdict(settings.limits),
    }


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Alone in making the cache. However the process ends, its lock goes; the file is removed after use."""
    path = directory.with_name(directory.name + ".lock")
    while True:
        with path.open("ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                print(f"Waiting for another process that is preparing {directory}.", file=sys.stderr)
                flock(file, LOCK_EX)
            if not _is_file(path, file):
                continue  # the process that had it removed this file: there may be another one by now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_file(path: Path, file: BinaryIO) -> bool:
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _make(directory: Path, corpus: Corpus, settings: CacheSettings, inputs: dict[str, Any]) -> None:
    """Make the cache beside its place and rename it. Under the lock whatever is there is a leftover."""
    unfinished = directory.with_name(directory.name + ".partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        summary = _fill(unfinished, corpus, settings)
        files = {path.name: path.stat().st_size for path in sorted(unfinished.iterdir())}
        versions = {
            "seqtool": seqtool.__version__,
            "sentencepiece": sentencepiece.__version__,
            "python": platform.python_version(),
        }
        record = {**summary, "inputs": inputs, "format": FORMAT, "versions": versions, "files": files}
        (unfinished / SUMMARY).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # nothing is there if all went well


def _fill(directory: Path, corpus: Corpus, settings: CacheSettings) -> dict[str, Any]:
    """Everything in the cache but its summary, which is returned. All text is read once beforehand."""
    counts = {split: sum(1 for _ in corpus.pairs(split)) for split in corpus.splits()}
    source, target = _vocabularies(corpus, settings.vocabulary, counts["train"])
    save_pair(directory, source, target)
    splits = {}
    with tqdm(total=sum(counts.values()), unit=" pairs", desc="Encoding", disable=None) as bar:
        for split, count in counts.items():
            splits[split] = _write_split(directory, corpus, split, count, settings, bar.update)
    return {
        "corpus": corpus.name,
        "languages": [corpus.source_language, corpus.target_language],
        "vocabulary": {
            "kind": source.kind,
            "source": len(source),
            "target": len(target),
            "joint": source is target,
        },
        "token_types": {"source": token_type(source).str, "target": token_type(target).str},
        "splits": splits,
    }


def _vocabularies(corpus: Corpus, settings: VocabularySettings, count: int) -> tuple[Vocabulary, Vocabulary]:
    """Those to be used again, or new ones, learnt from the training pairs or from a sample of them."""
    if settings.reuse is not None:
        return _reused(settings.reuse)
    sample: list[Pair] | None = None
    if settings.kind != "word" and settings.sample is not None:
        chosen = frozenset(random.Random(SEED).sample(range(count), min(settings.sample, count)))
        sample = [pair for i, pair in enumerate(corpus.pairs("train")) if i in chosen]

    def pairs() -> Iterable[Pair]:
        return corpus.pairs("train") if sample is None else sample

    if settings.joint:
        joint = train(chain.from_iterable(pairs()), settings)
        return joint, joint
    source = train((source for source, _ in pairs()), settings, side="source")
    return source, train((target for _, target in pairs()), settings, side="target")


def _reused(name: str) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of a cache, a checkpoint, or a run's best checkpoint."""
    path = Path(name)
    if (path / "checkpoints").is_dir():
        from seqtool import checkpoint  # imports torch, which preparing does without

        path = checkpoint.find(path).path
    return load_pair(path)


def _write_split(
    directory: Path,
    corpus: Corpus,
    split: str,
    count: int,
    settings: CacheSettings,
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """Write the files of a split of `count` pairs; returns what was counted.

    Of training pairs alone some are left out, and their text is not kept: scores are over all sentences.
    """
    is_train = split == "train"
    pairs = corpus.pairs(split)
    if not is_train:
        pairs = copied(pairs, directory / f"{split}.source.txt", directory / f"{split}.target.txt")
    limits = settings.limits if is_train else None
    dropped: Counter[str] = Counter()
    source, target = (SideWriter(directory / f"{split}.{side}") for side in ("source", "target"))
    with source, target:
        for chunk in encode(pairs, directory, limits, count=count, processes=settings.processes):
            source.write(chunk.source)
            target.write(chunk.target)
            dropped += chunk.dropped
            progress(len(chunk.source.lengths) + chunk.dropped.total())
    if source.sentences == 0:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise InputError(f"None of the {count:,} training pairs is within data.limits: {reasons}.")
    alignments = None if is_train else corpus.alignments(split)
    if alignments is not None:
        write_lines(directory / f"{split}.alignments.txt", alignments)
    sides = {
        name: {"tokens": side.tokens, "unknown": side.unknown}
        for name, side in (("source", source), ("target", target))
    }
    return {"pairs": source.sentences, "dropped": dict(sorted(dropped.items())), **sides}
