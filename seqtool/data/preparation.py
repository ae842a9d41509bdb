"""Prepares a corpus: learns vocabularies and encodes every sentence once, into a cache that runs share.

Sentence pairs have one or two vocabularies. Plain text is a column of lines with their line ends. Images with captions
are prepared in images/image_store.py.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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

from seqtool.data import checking
from seqtool.data.cache import FORMAT, LEFT_OUT, MAX_UNKNOWN, OFFSET, WORDS, Cache, token_type
from seqtool.data.corpora.corpus import Corpus, TextCorpus
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.directories import Digests, Unfinished, directory_path, make_once, versions
from seqtool.data.text.vocabulary import Vocabulary, VocabularySettings, list_unknown_pieces, load_all, save_all, train
from seqtool.data.text.words import analyse_writing, characters, words
from seqtool.errors import InputError
from seqtool.models.tokens import UNK
from seqtool.runtime.files import check_directory, cut, write_lines, write_whole
from seqtool.runtime.log import log
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.workers import in_order
from seqtool.settings import Config, declarations, names, plain, resolved, typed
from seqtool.settings.classes import Trust, build

if TYPE_CHECKING:
    from seqtool.data.images.image_store import ImageStore

SAMPLE_SEED = 0  # the seed for the sample from which SentencePiece learns
# This many training examples, and this many characters of each, show whether a text has spaces between words.
SCRIPT_EXAMPLES, SCRIPT_CHARACTERS = 1_000, 10_000
COUNTED_EXAMPLES = 1_000_000  # words are counted in the first training examples, so that memory stays bounded
UNKNOWN_EXAMPLES = 10_000  # unknown pieces are counted in the first examples of a split
CHUNK = 10_000  # examples that are encoded together
MIN_PARALLEL = 5 * CHUNK  # fewer examples are encoded by one process: it finishes before others could start
NO_COUNTS = {"sentences": 0, "tokens": 0, "unknown": 0, "bytes": 0}

Texts = tuple[str, ...]  # the texts of an example: source and target, or only a caption or line
C = TypeVar("C", bound=Corpus)

# The group `data` contains the settings of the cache (`CacheSettings`) and the arguments of the corpus's class.


@dataclass
class LimitSettings(declarations.Limits):
    """The settings under `data.limits`; the YAML files of preparation in configs/ say what each is."""

    def check(self) -> None:
        """Raise InputError for invalid limits, and for limits that no example can meet."""
        declarations.check_values(self, "data.limits.")
        if self.maximum is not None and self.maximum < self.minimum:
            raise InputError(f"data.limits.maximum is {self.maximum}, less than data.limits.minimum, {self.minimum}.")

    def reason(self, *lengths: int) -> str | None:
        """The reason to leave out an example whose sides have these lengths; None if it is within the limits."""
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
    """The settings under `data` for the cache; all other settings under `data` belong to the corpus.

    `clean` is a list once `cache_settings` has made it. The YAML files of preparation in configs/, and for plain text
    configs/data/text.yaml, say what each setting is.
    """

    vocabulary: VocabularySettings
    limits: LimitSettings = field(default_factory=LimitSettings)


def cache_settings(config: Config) -> CacheSettings:
    """The settings of the cache. Raises InputError if they are invalid. config: the group `data`"""
    settings = typed(CacheSettings, _part(config, for_cache=True))
    settings.clean = names(settings.clean)
    settings.vocabulary.check()
    settings.limits.check()
    declarations.check_values(settings, "data.")
    return settings


def corpus_settings(config: Config) -> Config:
    """The settings of the corpus. config: the group `data`"""
    return _part(config, for_cache=False)


def make_corpus(config: Config, kind: type[C], *, trusted: Trust) -> C:
    """Make the corpus that `config`, the group `data`, describes. Its files are not checked yet.

    Raises InputError if the corpus does not belong to `kind`.
    """
    corpus = build(corpus_settings(config), trusted=trusted, base=Corpus)
    if not isinstance(corpus, kind):
        needed = f"{kind.contents} are needed here, such as {kind.example}"
        raise InputError(f"{type(corpus).__name__} has {corpus.contents}, but {needed}.")
    return corpus


def _part(config: Config, *, for_cache: bool) -> Config:
    """The settings under `data` that belong to the cache or, if `for_cache` is false, to the corpus."""
    names = declarations.declared(CacheSettings)
    part = {name: value for name, value in plain(config).items() if (name in names) == for_cache}
    if not isinstance(config, DictConfig):
        return part
    return cast(DictConfig, resolved({"data": part}).data)  # so that messages have the settings' full names


# Preparing


class Steps(ABC):
    """The steps of preparing a corpus that differ between kinds of data."""

    unit: str  # the name of the examples in messages: "pairs"
    shortest: int = 1  # the length in characters from which an example is compared with others
    training: str  # the name of the training examples in messages: "training pairs"
    store: "ImageStore | None" = None  # the store of the corpus's images, if it has any

    def __init__(self, corpus: Corpus, settings: CacheSettings, name: str, inputs: Mapping[str, Any]) -> None:
        self.corpus = corpus
        self.settings = settings
        self.name = name  # the name of the cache
        self.inputs = inputs  # what the cache's name and summary depend on besides text, vocabularies and limits

    @abstractmethod
    def texts(self, split: str) -> Iterator[Texts]:
        """Yield the texts to encode for each example of the split."""

    def write_other_files(self, directory: Path, split: str) -> None:  # noqa: B027 optional
        """Write the split's files besides its encoded texts."""

    def summary(self, directory: Path) -> dict[str, Any]:
        """The summary's entries about the corpus. Also writes the files that belong to all splits, and logs advice."""
        return dict(self.inputs)

    def counted(self, split: str, examples: Iterator[tuple[Texts, str]]) -> Iterator[tuple[Texts, str]]:
        """Pass on all examples, each with the reason to leave it out, and count what `split_summary` needs."""
        return examples

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        """The entry of a split in the summary, made from the counts of its examples and tokens."""
        return dict(counts)

    def image_of(self, split: str) -> NDArray[np.int64] | None:
        """The index in the split of the image that each example describes; None if the corpus has no images."""
        return None

    def image_digests(self, split: str) -> list[str]:
        """The digest of the image that each example describes; an empty list if the corpus has no images."""
        return []

    def place(self, split: str, index: int) -> str:
        """Where an example is, for messages."""
        return f"line {index + 1:,}"

    def count_dropped(self, split: str) -> Counter[str]:
        """The number of examples of the split that `texts` leaves out, by reason."""
        return Counter()


def prepare(
    config: Config, kind: type[C], make_steps: Callable[[C, CacheSettings], Steps], *, needs: Sequence[str] = ()
) -> Cache:
    """Open the cache of the corpus that `config`, the group `data`, describes. It is made if it does not exist.

    `make_steps` is called when the corpus's files exist. If another process is making the same cache, this call waits.
    After an interruption, the next call resumes. Raises InputError and removes unfinished work if text or images are
    unusable or change meanwhile, or if the corpus lacks a split that it `needs`, which is checked before any is read.
    """
    settings = cache_settings(config)
    corpus = make_corpus(config, kind, trusted=True)
    checking.check_names(settings.clean, corpus)
    vocabulary_inputs: Any = asdict(settings.vocabulary)
    if settings.vocabulary.reuse is not None:  # check the vocabularies before anything is read or made
        reused = load_all(Path(settings.vocabulary.reuse), corpus.sides)
        if any(vocabulary.form.verbatim != corpus.verbatim for vocabulary in reused.values()):
            keeps = "keeps" if corpus.verbatim else "does not keep"
            raise InputError(
                f"data.vocabulary.reuse={settings.vocabulary.reuse} is a vocabulary for another kind of data: these "
                f"data need one that {keeps} white space unchanged."
            )
        fingerprints = [vocabulary.fingerprint for vocabulary in reused.values()]
        vocabulary_inputs = fingerprints if len(fingerprints) > 1 else fingerprints[0]
    root = Path(settings.cache)
    if not root.is_dir():  # a complete cache may be in a directory that is read-only
        check_directory(root, "data.cache")
    corpus.fetch()
    if missing := [split for split in needs if split not in corpus.splits()]:
        share = f"data.{missing[0]}_share"
        raise InputError(
            f"The data have no split '{missing[0]}', only {', '.join(corpus.splits())}: name its files with "
            f"data.{missing[0]}={f', or set {share} above 0' if share.partition('.')[2] in plain(config) else ''}."
        )
    digests = Digests(root / "digests.json")
    text_fingerprint = corpus.fingerprint(digests)  # before the text is read
    steps = make_steps(corpus, settings)
    inputs = {
        "format": FORMAT,
        "corpus": corpus.name,
        **steps.inputs,
        "text": text_fingerprint,
        "vocabulary": vocabulary_inputs,
        "limits": asdict(settings.limits),
        **({"clean": settings.clean} if settings.clean else {}),
    }
    directory = directory_path(root, steps.name, inputs)

    @digests.check_unchanged()
    def fill(unfinished: Path) -> dict[str, Any]:
        return {**_fill(unfinished, steps), "inputs": inputs}

    was_made = make_once(directory, fill)
    cache = Cache(directory, steps.store)
    if settings.strict:  # another call may have made the cache, or begun it
        checking.report(cache.summary.get("findings", []), strict=True)
    if not was_made:
        _warn_of_word_vocabulary(steps, cache.summary.get("without_spaces", []))
    return cache


def _fill(directory: Path, steps: Steps) -> dict[str, Any]:
    """Write all files of the cache except its summary, which is returned. All text is first read once and counted."""
    unfinished, sides = Unfinished(directory), steps.corpus.sides
    # the sides whose first training examples have no spaces between words
    sample = islice(steps.texts("train"), SCRIPT_EXAMPLES)
    columns = zip(*([text[:SCRIPT_CHARACTERS] for text in texts] for texts in sample), strict=True)
    unspaced_sides = [side for side, texts in zip(sides, columns, strict=False) if analyse_writing(texts).has_no_spaces]
    _warn_of_word_vocabulary(steps, unspaced_sides)
    counts: dict[str, int] | None = unfinished.progress.get("counts")
    if counts is None:
        checks = checking.Checks(steps, directory / f"train.{LEFT_OUT}")
        counts = {"train": 0}  # the first split, which is compared with the others
        counts |= {split: sum(1 for _ in checks.watch(split)) for split in steps.corpus.splits() if split != "train"}
        split_into_words = characters if "target" in unspaced_sides else words
        counts["train"] = _count_train(directory, steps, checks.watch("train"), split_into_words)
        checking.report(checks.findings, strict=steps.settings.strict)
        save_all(directory, _vocabularies(directory, steps, counts["train"]))
        unfinished.record(counts=counts, findings=checks.findings)
    vocabularies = load_all(directory, sides)
    splits = {}
    with progress_bar(total=sum(counts.values()), unit=f" {steps.unit}", description="Encoding") as bar:
        for split, count in counts.items():
            splits[split] = _write_split(directory, steps, split, count, unfinished, bar.update)
            for column, (side, vocabulary) in enumerate(vocabularies.items()):
                entry = splits[split].get(side, splits[split])
                if entry["unknown"] > MAX_UNKNOWN * entry["tokens"]:
                    texts = [example[column] for example in islice(steps.texts(split), UNKNOWN_EXAMPLES)]
                    entry["commonest_unknown"] = list_unknown_pieces(texts, vocabulary)
    return {
        "corpus": steps.corpus.name,
        **steps.summary(directory),
        **_vocabulary_entries(vocabularies),
        **({"without_spaces": unspaced_sides} if unspaced_sides else {}),
        "splits": splits,
        "findings": unfinished.progress.get("findings", []),
        "format": FORMAT,
        "versions": versions(sentencepiece=sentencepiece.__version__),
    }


def _warn_of_word_vocabulary(steps: Steps, unspaced_sides: Sequence[str]) -> None:
    """Warn if a vocabulary of words is learnt from sides without spaces between words."""
    settings = steps.settings.vocabulary
    if unspaced_sides and settings.kind == "word" and settings.reuse is None:
        log.warning(
            "The %s text has almost no spaces between words, so that a whole sentence is one word (1.0 tokens): set "
            "data.vocabulary.kind=char, or unigram.",
            " and ".join(unspaced_sides) if len(steps.corpus.sides) > 1 else "training",
        )


def _count_train(
    directory: Path, steps: Steps, texts: Iterator[tuple[Texts, str]], words_in: Callable[[str], list[str]]
) -> int:
    """Count the training examples. Except for plain text, also write the counts of words in the targets of those for
    which there is no reason to leave them out.
    """
    number = 0
    counts: Counter[str] = Counter()
    for number, (example, reason) in enumerate(texts, start=1):
        if number <= COUNTED_EXAMPLES and not steps.corpus.verbatim and not reason:
            counts.update(words_in(example[-1]))
    if not steps.corpus.verbatim:
        by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        write_whole(directory / WORDS, "".join(f"{count}\t{word}\n" for word, count in by_count).encode())
    return number


def _vocabularies(directory: Path, steps: Steps, count: int) -> dict[str, Vocabulary]:
    """Reuse the vocabulary of each side, or learn it from all `count` training examples or a sample of them, without
    those that `data.clean` leaves out.
    """
    settings, sides, verbatim = steps.settings.vocabulary, steps.corpus.sides, steps.corpus.verbatim
    if settings.reuse is not None:
        return load_all(Path(settings.reuse), sides)

    def kept(indices: Container[int] = range(count)) -> Iterator[Texts]:
        marked = checking.mark(steps.texts("train"), directory / f"train.{LEFT_OUT}")
        return (texts for i, (texts, reason) in enumerate(marked) if i in indices and not reason)

    if count and next(kept(), None) is None:
        raise InputError(f"data.clean leaves out all {count:,} {steps.training}: {', '.join(steps.settings.clean)}.")
    sample: list[Texts] = []
    # vocabularies that are lists use no sample
    if not settings.form(verbatim=verbatim).is_listed and settings.sample is not None:
        sample = [*kept({*random.Random(SAMPLE_SEED).sample(range(count), min(settings.sample, count))})]
    if settings.joint or len(sides) == 1:
        return dict.fromkeys(sides, train(chain.from_iterable(sample or kept()), settings, verbatim=verbatim))
    return {side: train((texts[i] for texts in sample or kept()), settings, side=side) for i, side in enumerate(sides)}


def _vocabulary_entries(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """The entries of the summary about the vocabularies; by side if there are two sides."""
    vocabulary, *other_vocabularies = vocabularies.values()
    if not other_vocabularies:
        entry = {"kind": vocabulary.form.kind, "size": len(vocabulary)}
        return {"vocabulary": entry, "token_type": token_type(vocabulary).str}
    sizes = {side: len(side_vocabulary) for side, side_vocabulary in vocabularies.items()}
    return {
        "vocabulary": {"kind": vocabulary.form.kind, **sizes, "joint": vocabulary is other_vocabularies[0]},
        "token_types": {side: token_type(side_vocabulary).str for side, side_vocabulary in vocabularies.items()},
    }


def _write_split(
    directory: Path, steps: Steps, split: str, count: int, unfinished: Unfinished, update: Callable[[int], object]
) -> dict[str, Any]:
    """Write the files of a split of `count` examples. Returns its entry in the summary.

    The limits apply only to training examples, since other splits are scored in full. Only the training split is
    resumed in the middle, since the others are small.
    """
    sides, is_train = steps.corpus.sides, split == "train"
    progress: Mapping[str, Any] = (is_train and unfinished.progress.get(split)) or {"read": 0, "dropped": {}}
    read = progress["read"]
    marked = checking.mark(steps.texts(split), directory / f"{split}.{LEFT_OUT}")
    examples = islice(steps.counted(split, marked), read, None)
    if read:
        log.info("Resuming after %s %s of an interrupted preparation.", f"{read:,}", steps.training)
        update(read)
    steps.write_other_files(directory, split)
    limits = steps.settings.limits if is_train else None
    encode = partial(encode_chunk, directory=directory, sides=tuple(sides), limits=limits)
    chunks = iter(lambda: list(islice(examples, CHUNK)), [])
    encoded = in_order(encode, chunks, processes=steps.settings.processes if count - read >= MIN_PARALLEL else 1)
    dropped: Counter[str] = Counter(progress["dropped"])
    writer = ColumnsWriter(directory / split, sides, image_of=steps.image_of(split), progress=progress)
    with closing(encoded), unfinished.record_regularly(split, writer.keep) as report_progress:
        for chunk in encoded:
            writer.write(chunk)
            dropped += chunk.dropped
            update(len(chunk.kept))
            if is_train:
                report_progress({"read": writer.read, "dropped": dict(dropped), **writer.counts})
    dropped = steps.count_dropped(split) + dropped
    sentences = writer.counts["target"]["sentences"]
    if not sentences:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        if not count:
            raise InputError(f"The split '{split}' has no {steps.unit}{f': {reasons}' if reasons else ''}.")
        settings = f"data.limits{' and data.clean' * bool(steps.settings.clean)}"
        raise InputError(f"None of the {count:,} {steps.training} is within {settings}: {reasons}.")
    totals = "tokens", "unknown"
    tokens: dict[str, Any] = {side: {name: counts[name] for name in totals} for side, counts in writer.counts.items()}
    counts = {steps.unit: sentences, **(tokens if len(tokens) > 1 else tokens["target"])}
    return {**steps.split_summary(split, counts), "dropped": dict(sorted(dropped.items()))}


# Encoding


class EncodedSide(NamedTuple):
    """The token ids of one side's sentences end to end, their lengths, and the number of unknown tokens."""

    tokens: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    unknown: int


class EncodedChunk(NamedTuple):
    """An encoded chunk of examples."""

    sides: tuple[EncodedSide, ...]  # the kept examples
    kept: NDArray[np.bool_]  # whether each example of the chunk is kept
    dropped: Counter[str]  # the number of dropped examples, by reason


def encode_chunk(
    examples: Sequence[tuple[Texts, str]], *, directory: Path, sides: tuple[str, ...], limits: LimitSettings | None
) -> EncodedChunk:
    """Encode the examples that have no reason to be left out, and are within the limits if there are limits, with the
    vocabularies of their sides in `directory`.
    """
    vocabularies = _load_once(directory, sides).values()
    texts, left_out = zip(*examples, strict=True)
    columns = zip(*texts, strict=True)
    ids = [vocabulary.encode_batch(lines) for vocabulary, lines in zip(vocabularies, columns, strict=True)]
    lengths = (map(len, example) for example in zip(*ids, strict=True))
    beyond = [None if limits is None else limits.reason(*side_lengths) for side_lengths in lengths]
    reasons = [first or second for first, second in zip(left_out, beyond, strict=True)]
    kept = np.array([reason is None for reason in reasons])
    sides_kept = []
    for side, vocabulary in zip(ids, vocabularies, strict=True):
        sentences = list(compress(side, kept))
        counts = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        tokens = np.fromiter(chain.from_iterable(sentences), dtype=token_type(vocabulary), count=int(counts.sum()))
        sides_kept.append(EncodedSide(tokens, counts, int(np.count_nonzero(tokens == UNK))))
    return EncodedChunk(tuple(sides_kept), kept, Counter(reason for reason in reasons if reason))


_load_once = lru_cache(maxsize=1)(load_all)  # each process loads the vocabularies once


class ColumnsWriter:
    """Writes the columns of a split, one per side, and for captions a column of the indices of their images."""

    def __init__(
        self, stem: Path, sides: Sequence[str], *, image_of: NDArray[np.int64] | None, progress: Mapping[str, Any]
    ) -> None:
        """Create the columns of a split, or open them and drop everything that the recorded progress does not count.

        stem: the beginning of the files' paths, such as cache/…/train.
        sides: the names of the sides.
        image_of: the index of the image of every caption, including dropped captions; None without images.
        progress: the recorded progress: the number of examples `read`, and the counts of each side.
        """
        self.counts: dict[str, Mapping[str, int]] = {side: progress.get(side, NO_COUNTS) for side in sides}
        self._image_of = image_of
        self.read = progress["read"]  # the number of examples so far, including dropped ones
        self._stem = stem
        self.keep(self.counts)

    def write(self, chunk: EncodedChunk) -> None:
        """Append the kept examples of a chunk."""
        for (name, counts), side in zip(self.counts.items(), chunk.sides, strict=True):
            self._append(f"{name}.tokens", side.tokens)
            self._append(f"{name}.offsets", (counts["tokens"] + np.cumsum(side.lengths)).astype(OFFSET))
            new_counts = (len(side.lengths), len(side.tokens), side.unknown, side.tokens.nbytes)
            self.counts[name] = {key: counts[key] + count for key, count in zip(NO_COUNTS, new_counts, strict=True)}
        if self._image_of is not None:
            images = self._image_of[self.read :][: len(chunk.kept)]
            self._append("image_of", images[chunk.kept].astype(OFFSET))
        self.read += len(chunk.kept)

    def keep(self, counts: Mapping[str, Any]) -> None:
        """Truncate the files to these counts. In a new file of offsets, this writes the first offset, 0."""
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


@final
class PairSteps(Steps):
    """Prepares sentence pairs. The cache also holds the text and gold alignments of all splits except train."""

    corpus: TextCorpus
    unit = "pairs"
    training = "training pairs"

    def __init__(self, corpus: TextCorpus, settings: CacheSettings) -> None:
        languages = [corpus.source_language, corpus.target_language]
        super().__init__(corpus, settings, "-".join([corpus.name, *languages]), {"languages": languages})

    def texts(self, split: str) -> Iterator[Texts]:
        return self.corpus.pairs(split)

    def summary(self, directory: Path) -> dict[str, Any]:
        return {"languages": list(self.corpus.languages)}

    def write_other_files(self, directory: Path, split: str) -> None:
        if split == "train":
            return
        if (alignments := self.corpus.alignments(split)) is not None:
            write_lines(directory / f"{split}.alignments.txt", alignments)
        for column, side in enumerate(self.corpus.sides):
            write_lines(directory / f"{split}.{side}.txt", (pair[column] for pair in self.corpus.pairs(split)))


@final
class TextSteps(Steps):
    """Prepares plain text as lines with their ends. Characters are counted so that vocabularies can be compared; the
    end of a line that is a sequence of its own counts as one.
    """

    corpus: PlainText
    unit = "lines"
    training = "lines of text"

    def __init__(self, corpus: PlainText, settings: CacheSettings) -> None:
        super().__init__(corpus, settings, corpus.name, {})
        self.shortest = 1 if corpus.by_line else checking.MIN_CHARACTERS
        self._characters: dict[str, int] = {}

    def texts(self, split: str) -> Iterator[Texts]:
        return ((line,) for line in self.corpus.lines(split))

    def place(self, split: str, index: int) -> str:
        return f"{'nonempty ' * self.corpus.by_line}{super().place(split, index)}{self.corpus.origin_of_lines(split)}"

    def counted(self, split: str, examples: Iterator[tuple[Texts, str]]) -> Iterator[tuple[Texts, str]]:
        characters = 0
        for (line,), reason in examples:
            characters += 0 if reason else len(line) + self.corpus.by_line
            yield (line,), reason
        self._characters[split] = characters

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        return {"characters": self._characters[split], **counts}


prepare_pairs = partial(prepare, kind=TextCorpus, make_steps=PairSteps)
prepare_text = partial(prepare, kind=PlainText, make_steps=TextSteps)
