"""The sentences that translations are scored on: a split of a corpus, one of sacreBLEU's test sets, or files."""

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import sacrebleu
from omegaconf import DictConfig

from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.text.alignment import SPLITS, parse_pharaoh
from seqtool.errors import InputError
from seqtool.metrics.alignment import Gold
from seqtool.metrics.translation import check_lengths
from seqtool.predict.evaluation import have_files
from seqtool.runtime.files import parse_json, read_lines

if TYPE_CHECKING:
    from seqtool.predict.translation_evaluation import TranslationEvaluation
    from seqtool.predict.translator import Translator
    from seqtool.training.checkpoint import Checkpoint

ANSWERING = 20.0  # seconds that a server may be silent, at first or later


@dataclass(frozen=True)
class TestSet:
    """Source lines (empty if unknown), whole reference texts, and gold alignments if there are any, with how they split
    a text into the words that they number.
    """

    sources: list[str]
    references: list[list[str]]
    golds: list[Gold] | None
    words: Callable[[str], list[str]] = str.split

    def split(self, *columns: Sequence[str]) -> Iterator[list[list[str]]]:
        """The words of the texts of each column."""
        return (list(map(self.words, texts)) for texts in columns)


def test_set(
    settings: "TranslationEvaluation", translator: "Translator", data: DictConfig | None, found: "Checkpoint | None"
) -> TestSet:
    """The test set for a checkpoint: testset=NAME, sources=FILE references=FILE, or a split of `data` or else of the
    checkpoint's own data, which may be in a cache that `found` identifies.
    """
    from seqtool.runtime.distributed import first_here  # imports torch, which scoring files does without

    if settings.testset is not None:
        return first_here(partial(_sacrebleu_test_set, settings.testset, settings.langpair))
    if settings.sources is not None:
        return read_test_files(settings, list(read_lines(Path(settings.sources))), name=settings.sources)
    corpus = settings.corpus(TextCorpus, translator, data)
    if settings.split not in corpus.splits():
        raise InputError(
            f"Unknown split '{settings.split}'; this corpus has {', '.join(corpus.splits())}. "
            "For files of your own give sources=FILE references=FILE."
        )
    try:
        have_files(corpus, data)
        pairs = list(corpus.pairs(settings.split))
        gold = corpus.alignments(settings.split)
    except InputError as missing:
        from seqtool.training import moved_data  # imports torch, which scoring files does without

        if found is None or moved_data.is_there(corpus, settings.split):
            raise
        own = translator.config["data"]
        split = moved_data.texts(found, own, settings.split)
        if split is None:
            raise InputError(f"{missing} {moved_data.how_to_find(found, own, [settings.split])}") from missing
        pairs = list(zip(split.texts("source"), split.texts("target"), strict=True))
        gold = split.alignments()
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    words = corpus.words if settings.words is None else SPLITS[settings.words]
    golds = None if gold is None else [parse_pharaoh(line) for line in gold]
    if golds is not None:
        check_links(golds, sources, [targets], words, name=f"The gold alignments of {settings.split}")
    return TestSet(sources, [targets], golds, words)


def test_of_files(settings: "TranslationEvaluation", lines: Sequence[str], *, name: str) -> TestSet:
    """The test set for the hypotheses of a file `name`: testset=NAME, or the files of the settings."""
    if settings.testset is None:
        return read_test_files(settings, lines, name=name)
    found = _sacrebleu_test_set(settings.testset, settings.langpair)
    test = f"testset={settings.testset}"
    check_lengths(lines, found.references, name=name, reference_names=[test] * len(found.references))
    return found


def read_test_files(settings: "TranslationEvaluation", lines: Sequence[str], *, name: str) -> TestSet:
    """references=FILE[,FILE…], and sources=FILE and gold=FILE if they are given, parallel to the lines of `name`."""
    references = [list(read_lines(Path(file))) for file in settings.references]
    check_lengths(lines, references, name=name, reference_names=settings.references)
    sources: list[str] = []
    if settings.sources is not None:
        sources = list(lines if name == settings.sources else read_lines(Path(settings.sources)))
        check_lengths(lines, [sources], name=name, reference_names=[settings.sources])
    golds, words = None, SPLITS[settings.words or "spaces"]
    if settings.gold is not None:
        targets = [references[0], *([] if settings.hypotheses is None else [lines])]
        golds = read_alignments(settings.gold, sources, targets, words, name=name)
    return TestSet(sources, references, golds, words)


def read_translations(path: str) -> list[str]:
    """The lines of a file, or the best translation of each line of what `translate format=jsonl` wrote."""
    lines = list(read_lines(Path(path)))
    if not lines[0].startswith('{"source": '):
        return lines
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(str(parse_json(line)["translations"][0]["text"]))
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(f"{path} line {number:,} is not what translate format=jsonl writes.") from error
    return found


def read_alignments(
    path: str,
    sources: Sequence[str],
    targets: Sequence[Sequence[str]],
    words: Callable[[str], list[str]],
    *,
    name: str,
) -> list[Gold]:
    """A file of alignments, in Pharaoh format, for the lines of `name`; each link must be between words of the source
    and of one of the targets (the hypothesis, its reference).
    """
    found = [parse_pharaoh(line, place=f"{path} line {n:,}") for n, line in enumerate(read_lines(Path(path)), 1)]
    if len(found) != len(sources):
        raise InputError(
            f"{path} has {len(found):,} lines but {name} has {len(sources):,}: they must be of the same sentences."
        )
    check_links(found, sources, targets, words, name=path)
    return found


def check_links(
    links: Sequence[Gold],
    sources: Sequence[str],
    targets: Sequence[Sequence[str]],
    words: Callable[[str], list[str]],
    *,
    name: str,
) -> None:
    """Raise InputError unless each link is between words of the source and of one of the targets."""
    for number, ((sure, possible), source, *others) in enumerate(zip(links, sources, *targets, strict=True), 1):
        read, written = len(words(source)), max(len(words(other)) for other in others)
        for i, j in sorted(sure | possible):
            if i >= read or j >= written:
                raise InputError(
                    f"{name} line {number:,} has the link {i}-{j}, but its sentences have {read} and {written} words, "
                    "counted from 0: words are what white space separates, unless words=marks or words=characters says "
                    "what else the links number. Give the text, tokenised if need be, that the alignments are of."
                )


def _sacrebleu_test_set(name: str, langpair: str | None) -> TestSet:
    known = sacrebleu.get_available_testsets()
    if name not in known:
        raise InputError(f"Unknown testset '{name}'; sacreBLEU has {', '.join(known[:8])}, …")
    pairs = sacrebleu.get_langpairs_for_testset(name)
    if langpair not in pairs:
        raise InputError(f"testset={name} needs langpair=…, one of {', '.join(pairs)}.")
    place = Path(sacrebleu.utils.SACREBLEU_DIR, name, f"{name.replace('/', '_')}.{langpair}")
    own = [Path(f"{place}.src"), Path(f"{place}.ref")]  # where sacreBLEU keeps them, and users may put them
    texts = [list(read_lines(file)) for file in own if file.is_file()]
    if len(texts) == 2 and len(texts[0]) == len(texts[1]):
        return TestSet(texts[0], texts[1:], None)
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(ANSWERING)
        files = [sacrebleu.get_source_file(name, langpair), *sacrebleu.get_reference_files(name, langpair)]
    except (SystemExit, OSError, HTTPException) as error:  # sacreBLEU raises SystemExit after saying why
        found = getattr(error, "reason", error)
        reason = "" if isinstance(error, SystemExit) else f" ({getattr(found, 'strerror', None) or found})"
        addresses = " and ".join(sacrebleu.DATASETS[name].data or [])
        raise InputError(
            f"testset={name} could not be had from {addresses}{reason}: it needs the network once, or its text, a "
            f"sentence a line, put into {own[0]} and {own[1]}."
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    source, *references = (list(read_lines(Path(file))) for file in files)
    return TestSet(source, references, None)
