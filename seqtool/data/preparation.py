"""Preparing a corpus: vocabularies learnt, every sentence encoded once, into a cache that runs share."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

import sentencepiece
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from seqtool.config import Config, build, typed
from seqtool.data.cache import FORMAT, Cache, SideWriter, copied, write_lines
from seqtool.data.captioning import ImageCorpus
from seqtool.data.digests import Digests
from seqtool.data.directories import make_once, place, versions
from seqtool.data.encoding import LimitSettings, Pair, encode, token_type
from seqtool.data.translation import Corpus
from seqtool.data.unfinished import SHARD, Unfinished
from seqtool.data.vocabulary import Vocabulary, load_pair, save_pair
from seqtool.data.vocabulary_training import VocabularySettings, train
from seqtool.errors import InputError

log = logging.getLogger("seqtool")

PROCESSES = 1024  # at most
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
        if self.processes is not None and self.processes > PROCESSES:
            raise InputError(f"data.processes is {self.processes:,} but must be at most {PROCESSES:,}.")


OWN = frozenset(one.name for one in fields(CacheSettings))


def make_corpus(config: Config, *, trusted: bool) -> Corpus:
    """The corpus that `config`, the settings under `data`, describes; its files are not yet looked at.

    Not `trusted`: a configuration out of a checkpoint, which may only name corpora of this package.
    """
    corpus = build(corpus_settings(config), trusted=trusted, base=(Corpus, ImageCorpus))
    if not isinstance(corpus, Corpus):
        raise InputError(
            f"{type(corpus).__name__} has images, not sentence pairs: choose model=show_attend_tell or "
            "model=show_tell, or parallel text such as data=toy."
        )
    return corpus


def prepare_cache(config: Config, *, trusted: bool = True) -> Cache:
    """The cache of the corpus that `config`, the settings under `data`, describes; made if it is not there.

    Raises InputError on settings or text that cannot be used; then nothing is left behind. A process that
    finds another one making the same cache waits for it. `trusted` as for `make_corpus`.
    """
    settings = cache_settings(config)
    corpus = make_corpus(config, trusted=trusted)
    root = Path(settings.cache)
    root.mkdir(parents=True, exist_ok=True)
    corpus.fetch()
    inputs = _inputs(corpus, settings, Digests(root / "digests.json"))
    directory = place(root, "-".join((corpus.name, corpus.source_language, corpus.target_language)), inputs)
    make_once(directory, lambda unfinished: _fill(unfinished, corpus, settings, inputs), resumes=True)
    return Cache(directory)


def cache_settings(config: Config) -> CacheSettings:
    """The settings of the cache itself in `config`, the settings under `data`, checked."""
    settings = typed(CacheSettings, _part(config, own=True))
    settings.check()
    return settings


def corpus_settings(config: Config) -> Config:
    """The other settings: the corpus's."""
    return _part(config, own=False)


def _part(config: Config, *, own: bool) -> Config:
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


def _fill(directory: Path, corpus: Corpus, settings: CacheSettings, inputs: dict[str, Any]) -> dict[str, Any]:
    """Everything in the cache but its summary, which is returned. All text is read once beforehand."""
    unfinished = Unfinished(directory)
    counts = unfinished.counts
    if counts is None:
        counts = {split: sum(1 for _ in corpus.pairs(split)) for split in corpus.splits()}
        save_pair(directory, *_vocabularies(corpus, settings.vocabulary, counts["train"]))
        unfinished.note(counts=counts)
    source, target = load_pair(directory)
    splits = {}
    with tqdm(total=sum(counts.values()), unit=" pairs", desc="Encoding", disable=None) as bar:
        for split, count in counts.items():
            splits[split] = _write_split(directory, corpus, split, count, settings, unfinished, bar.update)
    unfinished.finish()
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
        "inputs": inputs,
        "format": FORMAT,
        "versions": versions(sentencepiece=sentencepiece.__version__),
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
    return load_pair(vocabulary_directory(name))


def vocabulary_directory(name: str) -> Path:
    """Where the vocabularies are of a cache, a checkpoint, or a run's best checkpoint."""
    path = Path(name)
    if (path / "checkpoints").is_dir():
        from seqtool import checkpoint  # imports torch, which preparing text does without

        path = checkpoint.find(path).path
    return path


def _write_split(
    directory: Path,
    corpus: Corpus,
    split: str,
    count: int,
    settings: CacheSettings,
    unfinished: Unfinished,
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """Write the files of a split of `count` pairs; returns what was counted.

    Of training pairs alone some are left out, and their text is not kept: scores are over all sentences. They alone
    are so many that it is worth going on with what a killed process has left.
    """
    is_train = split == "train"
    pairs = corpus.pairs(split)
    begun: Mapping[str, Any] = unfinished.train if is_train else {"read": 0, "dropped": {}}
    read = begun["read"]
    if read:
        log.info("Going on after %s training pairs, which a preparation that was killed has left.", f"{read:,}")
        pairs = islice(pairs, read, None)
        progress(read)
    if not is_train:
        pairs = copied(pairs, directory / f"{split}.source.txt", directory / f"{split}.target.txt")
    limits = settings.limits if is_train else None
    dropped: Counter[str] = Counter(begun["dropped"])
    source, target = (SideWriter(directory / f"{split}.{side}", begun.get(side)) for side in ("source", "target"))
    with source, target:
        for chunk in encode(pairs, directory, limits, count=count - read, processes=settings.processes):
            source.write(chunk.source)
            target.write(chunk.target)
            dropped += chunk.dropped
            size = len(chunk.source.lengths) + chunk.dropped.total()
            progress(size)
            read += size
            if is_train and (read % SHARD == 0 or read == count):
                so_far = {"read": read, "dropped": dropped, "source": source.noted(), "target": target.noted()}
                unfinished.note(train=so_far)
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
