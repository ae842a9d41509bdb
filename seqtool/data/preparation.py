"""Preparing a corpus: vocabularies learnt, every sentence encoded once, into a cache that runs share.

Sentence pairs have one vocabulary or two; plain text is a column of lines with their line ends; images with captions
are prepared in images/image_store.py.
"""

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast, final

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.cache import FORMAT, MUCH, OFFSET, WORDS, Cache, token_type
from seqtool.data.corpora.corpus import Corpus, TextCorpus
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.directories import Digests, Unfinished, make_once, place, versions
from seqtool.data.text.vocabulary import Vocabulary, VocabularySettings, load_all, save_all, train, unknown_in
from seqtool.data.text.words import characters, words, writing
from seqtool.errors import InputError
from seqtool.models.tokens import UNK
from seqtool.runtime.files import cut, write_lines, write_whole
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.workers import in_order
from seqtool.settings import Config, declarations, plain, resolved, typed
from seqtool.settings.classes import Trust, build

if TYPE_CHECKING:
    from seqtool.data.images.image_store import ImageStore

SEED = 0  # for the sample that SentencePiece learns from
SAMPLED, SAMPLED_CHARACTERS = 1_000, 10_000  # training examples that show how a text is written, and what of each
COUNTED = 1_000_000  # training examples whose words are counted, so that memory does not grow with the corpus
COUNTED_UNKNOWN = 10_000  # examples in which the unknown pieces of a split are counted
CHUNK = 10_000  # examples
SMALL = 5 * CHUNK  # fewer are encoded before other processes could start
NOTHING = {"sentences": 0, "tokens": 0, "unknown": 0, "bytes": 0}

Texts = tuple[str, ...]  # an example's texts: a pair's source and target, or only a caption
log = logging.getLogger("seqtool")
C = TypeVar("C", bound=Corpus)

# The settings under `data`: those of the cache, and the corpus's own, from which it is built.


@dataclass
class LimitSettings(declarations.Limits):
    """Limits for training examples: the length of each side in tokens, at most `ratio` times the other's.

    null is no limit, and so is a setting that a kind of data does not have.
    """

    def check(self) -> None:
        """Raise InputError on limits that no example can meet."""
        declarations.check_values(self, "data.limits.")
        if self.maximum is not None and self.maximum < self.minimum:
            raise InputError(f"data.limits.maximum is {self.maximum}, less than data.limits.minimum, {self.minimum}.")

    def reason(self, *lengths: int) -> str | None:
        """Why an example whose sides have these lengths is left out, or None."""
        shorter, longer = min(lengths), max(lengths)
        if shorter == 0:
            return "empty"
        if shorter < self.minimum:
            return "too short"
        if self.maximum is not None and longer > self.maximum:
            return "too long"
        if self.ratio is not None and longer > self.ratio * shorter:
            return "ratio"
        return None


@dataclass
class CacheSettings(declarations.Cache):
    """The settings of `data` that are not the corpus's own.

    cache: the directory that holds caches. processes: how many encode; null is one per CPU, up to 8. limits: for
    training pairs and captions; a text has none.
    """

    vocabulary: VocabularySettings
    limits: LimitSettings = field(default_factory=LimitSettings)


def cache_settings(config: Config) -> CacheSettings:
    """The settings of the cache itself among `config`, the settings under `data`, checked."""
    settings = typed(CacheSettings, _part(config, own=True))
    settings.vocabulary.check()
    settings.limits.check()
    declarations.check_values(settings, "data.")
    return settings


def corpus_settings(config: Config) -> Config:
    """The other settings: the corpus's."""
    return _part(config, own=False)


def make_corpus(config: Config, kind: type[C], *, trusted: Trust) -> C:
    """The corpus of this kind that `config`, the settings under `data`, describes; its files are not yet checked.

    `trusted`: for a configuration from a checkpoint, the modules, besides this package, whose corpora it may name.
    """
    corpus = build(corpus_settings(config), trusted=trusted, base=Corpus)
    if not isinstance(corpus, kind):
        name, wanted = type(corpus).__name__, f"{kind.contents} are wanted here, such as {kind.example}"
        raise InputError(f"{name} has {corpus.contents}, but {wanted}.")
    return corpus


def _part(config: Config, *, own: bool) -> Config:
    cached = declarations.declared(CacheSettings)
    part = {name: value for name, value in plain(config).items() if (name in cached) == own}
    if not isinstance(config, DictConfig):
        return part
    return cast(DictConfig, resolved({"data": part}).data)  # it knows its full name, for messages


# Preparing


class Steps(ABC):
    """The steps of preparing that differ between kinds of data, for one corpus.

    name: the cache's.
    inputs: what the cache depends on besides text, vocabularies and limits.
    unit, training: the names of its examples, and of its training examples ("training pairs"), in messages.
    """

    unit: str
    training: str
    store: "ImageStore | None" = None

    def __init__(self, corpus: Corpus, settings: CacheSettings, name: str, inputs: Mapping[str, Any]) -> None:
        self.corpus = corpus
        self.settings = settings
        self.name = name
        self.inputs = inputs

    @abstractmethod
    def texts(self, split: str) -> Iterator[Texts]:
        """The texts to encode: for each example of the split, the text of each side."""

    def write_others(self, directory: Path, split: str) -> None:  # noqa: B027 there may be none
        """Write the cache's files of the split besides the columns of its texts."""

    def summary(self, directory: Path) -> dict[str, Any]:
        """Further entries of the cache's summary about the corpus. Writes files that belong to no single split, and
        logs what a user should know about the corpus.
        """
        return dict(self.inputs)

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        """A split's entry in the summary, from the counts of its examples and tokens."""
        return dict(counts)

    def image_of(self, split: str) -> NDArray[np.int64] | None:
        """The image of the split that each example describes."""
        return None

    def dropped(self, split: str) -> Counter[str]:
        """How many examples of the split are missing from its texts, by reason."""
        return Counter()


def prepare(
    config: Config, kind: type[C], make_steps: Callable[[C, CacheSettings], Steps], *, needs: Sequence[str] = ()
) -> Cache:
    """The cache of a corpus, made if it does not exist.

    config: the settings under `data`.
    kind: of the corpus that they describe.
    make_steps: is called once the corpus's files exist.
    needs: the splits that the corpus must have.

    Raises InputError for a corpus without the splits that are needed, before any is read, and for text or images that
    cannot be used, or that change meanwhile; then nothing is left behind. If anything else interrupts it, the next call
    resumes. If another process is making the same cache, this one waits.
    """
    settings = cache_settings(config)
    corpus = make_corpus(config, kind, trusted=True)
    vocabulary: Any = asdict(settings.vocabulary)  # what the cache depends on of its vocabularies
    if settings.vocabulary.reuse is not None:  # wrong ones are refused before anything is read or made
        reused = load_all(Path(settings.vocabulary.reuse), corpus.sides)
        if any(other.form.verbatim != corpus.verbatim for other in reused.values()):
            wanted = "keeps" if corpus.verbatim else "does not keep"
            raise InputError(
                f"data.vocabulary.reuse={settings.vocabulary.reuse} is a vocabulary for other data: wanted is one that "
                f"{wanted} white space as it is."
            )
        fingerprints = [other.fingerprint for other in reused.values()]
        vocabulary = fingerprints if len(fingerprints) > 1 else fingerprints[0]
    root = Path(settings.cache)
    root.mkdir(parents=True, exist_ok=True)
    corpus.fetch()
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

    @digests.unchanged()
    def fill(unfinished: Path) -> dict[str, Any]:
        return {**_fill(unfinished, steps), "inputs": inputs}

    was_made = make_once(directory, fill)
    cache = Cache(directory, steps.store)
    if not was_made:
        _warn_of_words(steps, cache.summary.get("without_spaces", []))
    return cache


def _fill(directory: Path, steps: Steps) -> dict[str, Any]:
    """Write everything in the cache but its summary, which is returned. All text is read once beforehand."""
    unfinished, sides = Unfinished(directory), steps.corpus.sides
    sample = islice(steps.texts("train"), SAMPLED)
    columns = zip(*([text[:SAMPLED_CHARACTERS] for text in texts] for texts in sample), strict=True)
    unspaced = [side for side, texts in zip(sides, columns, strict=False) if writing(texts).has_no_spaces]
    _warn_of_words(steps, unspaced)
    counts: dict[str, int] | None = unfinished.progress.get("counts")
    if counts is None:
        split_up = characters if "target" in unspaced else words
        counts = {
            split: _count_train(directory, steps, split_up) if split == "train" else sum(1 for _ in steps.texts(split))
            for split in steps.corpus.splits()
        }
        save_all(directory, _vocabularies(steps, counts["train"]))
        unfinished.note(counts=counts)
    vocabularies = load_all(directory, sides)
    splits = {}
    with progress_bar(total=sum(counts.values()), unit=f" {steps.unit}", description="Encoding") as bar:
        for split, count in counts.items():
            splits[split] = _write_split(directory, steps, split, count, unfinished, bar.update)
            for column, (side, vocabulary) in enumerate(vocabularies.items()):
                entry = splits[split].get(side, splits[split])
                if entry["unknown"] > MUCH * entry["tokens"]:
                    texts = [example[column] for example in islice(steps.texts(split), COUNTED_UNKNOWN)]
                    entry["commonest_unknown"] = unknown_in(texts, vocabulary)
    return {
        "corpus": steps.corpus.name,
        **steps.summary(directory),
        **_described(vocabularies),
        **({"without_spaces": unspaced} if unspaced else {}),
        "splits": splits,
        "format": FORMAT,
        "versions": versions(sentencepiece=sentencepiece.__version__),
    }


def _warn_of_words(steps: Steps, unspaced: Sequence[str]) -> None:
    settings = steps.settings.vocabulary
    if unspaced and settings.kind == "word" and settings.reuse is None:
        log.warning(
            "%s: almost no spaces between words, so that a whole sentence is one word (1.0 tokens): set "
            "data.vocabulary.kind=char, or unigram.",
            f"The {' and '.join(unspaced)} text" if len(steps.corpus.sides) > 1 else f"The {steps.training}",
        )


def _count_train(directory: Path, steps: Steps, split_up: Callable[[str], list[str]]) -> int:
    """The number of training examples; writes how often each word stands in their targets, unless they are verbatim."""
    number = 0
    counts: Counter[str] = Counter()
    for number, texts in enumerate(steps.texts("train"), start=1):
        if number <= COUNTED and not steps.corpus.verbatim:
            counts.update(split_up(texts[-1]))
    if not steps.corpus.verbatim:
        by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        write_whole(directory / WORDS, "".join(f"{count}\t{word}\n" for word, count in by_count).encode())
    return number


def _vocabularies(steps: Steps, count: int) -> dict[str, Vocabulary]:
    """Vocabularies: reused ones, or new ones learnt from the `count` training examples or a sample of them."""
    settings, sides, verbatim = steps.settings.vocabulary, steps.corpus.sides, steps.corpus.verbatim
    if settings.reuse is not None:
        return load_all(Path(settings.reuse), sides)
    sample: list[Texts] | None = None
    if not settings.form(verbatim=verbatim).is_listed and settings.sample is not None:  # a list needs no memory
        chosen = frozenset(random.Random(SEED).sample(range(count), min(settings.sample, count)))
        sample = [texts for i, texts in enumerate(steps.texts("train")) if i in chosen]

    def examples() -> Iterable[Texts]:
        return steps.texts("train") if sample is None else sample

    if settings.joint or len(sides) == 1:
        return dict.fromkeys(sides, train(chain.from_iterable(examples()), settings, verbatim=verbatim))
    return {side: train((texts[i] for texts in examples()), settings, side=side) for i, side in enumerate(sides)}


def _described(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """The vocabularies' entry in the summary, by side if there are two."""
    first, *others = vocabularies.values()
    if not others:
        return {"vocabulary": {"kind": first.form.kind, "size": len(first)}, "token_type": token_type(first).str}
    sizes = {side: len(vocabulary) for side, vocabulary in vocabularies.items()}
    return {
        "vocabulary": {"kind": first.form.kind, **sizes, "joint": first is others[0]},
        "token_types": {side: token_type(vocabulary).str for side, vocabulary in vocabularies.items()},
    }


def _write_split(
    directory: Path, steps: Steps, split: str, count: int, unfinished: Unfinished, update: Callable[[int], object]
) -> dict[str, Any]:
    """Write the files of a split of `count` examples; returns their counts.

    The limits apply only to training examples: other splits are scored in full. Only training examples are so many
    that it pays to resume in the middle of them.
    """
    sides, is_train = steps.corpus.sides, split == "train"
    begun: Mapping[str, Any] = (is_train and unfinished.progress.get(split)) or {"read": 0, "dropped": {}}
    read = begun["read"]
    texts = islice(steps.texts(split), read, None)
    if read:
        log.info("Resuming after %s %s of an interrupted preparation.", f"{read:,}", steps.training)
        update(read)
    steps.write_others(directory, split)
    limits = steps.settings.limits if is_train else None
    encode = partial(encode_chunk, directory=directory, sides=tuple(sides), limits=limits)
    chunks = iter(lambda: list(islice(texts, CHUNK)), [])
    encoded = in_order(encode, chunks, processes=steps.settings.processes if count - read >= SMALL else 1)
    dropped: Counter[str] = Counter(begun["dropped"])
    written = ColumnsWriter(directory / split, sides, image_of=steps.image_of(split), begun=begun)
    with closing(encoded), unfinished.noting(split, written.keep) as reached:
        for chunk in encoded:
            written.write(chunk)
            dropped += chunk.dropped
            update(len(chunk.kept))
            if is_train:
                reached({"read": written.read, "dropped": dict(dropped), **written.counts})
    dropped = steps.dropped(split) + dropped
    kept = written.counts["target"]["sentences"]
    if not kept:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise InputError(f"None of the {count:,} {steps.training} is within data.limits: {reasons}.")
    tokens: dict[str, Any] = {
        side: {name: counts[name] for name in ("tokens", "unknown")} for side, counts in written.counts.items()
    }
    counts = {steps.unit: kept, **(tokens if len(tokens) > 1 else tokens["target"])}
    return {**steps.split_summary(split, counts), "dropped": dict(sorted(dropped.items()))}


# Encoding


class Side(NamedTuple):
    """Token ids of one side's sentences end to end, their lengths, and how many tokens are unknown."""

    tokens: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    unknown: int


class Encoded(NamedTuple):
    """A chunk of examples: which are kept, their sides, and how many are not (`dropped`), by reason."""

    sides: tuple[Side, ...]
    kept: NDArray[np.bool_]
    dropped: Counter[str]


def encode_chunk(
    examples: Sequence[Texts], *, directory: Path, sides: tuple[str, ...], limits: LimitSettings | None
) -> Encoded:
    """The examples as ids, each side by its vocabulary. Without limits every one is kept."""
    vocabularies = _loaded(directory, sides).values()
    texts = zip(*examples, strict=True)
    ids = [vocabulary.encode_batch(lines) for vocabulary, lines in zip(vocabularies, texts, strict=True)]
    lengths = (map(len, example) for example in zip(*ids, strict=True))
    reasons = [None if limits is None else limits.reason(*each) for each in lengths]
    kept = np.array([reason is None for reason in reasons])
    sides_kept = []
    for side, vocabulary in zip(ids, vocabularies, strict=True):
        sentences = list(compress(side, kept))
        counts = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        tokens = np.fromiter(chain.from_iterable(sentences), dtype=token_type(vocabulary), count=int(counts.sum()))
        sides_kept.append(Side(tokens, counts, int(np.count_nonzero(tokens == UNK))))
    return Encoded(tuple(sides_kept), kept, Counter(reason for reason in reasons if reason))


_loaded = lru_cache(maxsize=1)(load_all)  # once per process


class ColumnsWriter:
    """Writes the columns of a split, one per side, and for captions the image that each describes.

    stem: as in cache/…/train.
    image_of: the image of every caption, including those that are left out.
    begun: how far an interrupted preparation came, in examples (`read`) and in the counts of each side.
    """

    def __init__(
        self, stem: Path, sides: Sequence[str], *, image_of: NDArray[np.int64] | None, begun: Mapping[str, Any]
    ) -> None:
        self.counts: dict[str, Mapping[str, int]] = {side: begun.get(side, NOTHING) for side in sides}
        self._image_of = image_of
        self.read = begun["read"]
        self._stem = stem
        self.keep(self.counts)

    def write(self, chunk: Encoded) -> None:
        for (name, before), side in zip(self.counts.items(), chunk.sides, strict=True):
            self._append(f"{name}.tokens", side.tokens)
            self._append(f"{name}.offsets", (before["tokens"] + np.cumsum(side.lengths)).astype(OFFSET))
            more = (len(side.lengths), len(side.tokens), side.unknown, side.tokens.nbytes)
            self.counts[name] = {key: before[key] + count for key, count in zip(NOTHING, more, strict=True)}
        if self._image_of is not None:
            images = self._image_of[self.read :][: len(chunk.kept)]
            self._append("image_of", images[chunk.kept].astype(OFFSET))
        self.read += len(chunk.kept)

    def keep(self, counts: Mapping[str, Any]) -> None:
        """Cut the files back to these counts. Extending a new file of offsets to 8 bytes writes its first offset, 0."""
        sizes = {}
        for side in self.counts:
            sizes[f"{side}.tokens"] = counts[side]["bytes"]
            sizes[f"{side}.offsets"] = OFFSET.itemsize * (counts[side]["sentences"] + 1)
            if self._image_of is not None:
                sizes["image_of"] = OFFSET.itemsize * counts[side]["sentences"]
        for name, size in sizes.items():
            with self._open(name) as file:
                cut(file, size)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        with self._open(name) as file:
            file.write(values.tobytes())

    def _open(self, name: str) -> BinaryIO:
        return self._stem.with_name(f"{self._stem.name}.{name}.bin").open("ab")


# Pairs and text


def prepare_pairs(config: Config, *, needs: Sequence[str] = ()) -> Cache:
    """The cache of the sentence pairs that `config`, the settings under `data`, describes; see `prepare`."""
    return prepare(config, TextCorpus, PairSteps, needs=needs)


def prepare_text(config: Config, *, needs: Sequence[str] = ()) -> Cache:
    """The cache of the text that `config`, the settings under `data`, describes; see `prepare`."""
    return prepare(config, PlainText, TextSteps, needs=needs)


@final
class PairSteps(Steps):
    """Sentence pairs; for splits other than train, the cache keeps the text and gold alignments."""

    corpus: TextCorpus
    unit = "pairs"
    training = "training pairs"

    def __init__(self, corpus: TextCorpus, settings: CacheSettings) -> None:
        languages = [corpus.source_language, corpus.target_language]
        super().__init__(corpus, settings, "-".join([corpus.name, *languages]), {"languages": languages})

    def texts(self, split: str) -> Iterator[Texts]:
        return self.corpus.pairs(split)

    def write_others(self, directory: Path, split: str) -> None:
        if split == "train":
            return
        if (alignments := self.corpus.alignments(split)) is not None:
            write_lines(directory / f"{split}.alignments.txt", alignments)
        for column, side in enumerate(self.corpus.sides):
            write_lines(directory / f"{split}.{side}.txt", (pair[column] for pair in self.corpus.pairs(split)))


@final
class TextSteps(Steps):
    """Lines of text with their line ends. Characters are counted: vocabularies cannot be compared by loss per token."""

    corpus: PlainText
    unit = "lines"
    training = "lines of text"

    def __init__(self, corpus: PlainText, settings: CacheSettings) -> None:
        super().__init__(corpus, settings, corpus.name, {})
        self._characters: dict[str, int] = {}

    def texts(self, split: str) -> Iterator[Texts]:
        characters = 0
        for line in self.corpus.lines(split):
            characters += len(line)
            yield (line,)
        self._characters[split] = characters

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        return {"characters": self._characters[split], **counts}
