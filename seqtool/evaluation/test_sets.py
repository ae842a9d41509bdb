"""The sentences that translations are scored on: files, one of sacreBLEU's test sets, or a split of a corpus."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import sacrebleu

from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.text.alignment import parse_pharaoh
from seqtool.data.text.words import SPLITS
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import EvaluationData, Segment
from seqtool.evaluation.settings import EvaluationSettings
from seqtool.metrics.alignment import Gold
from seqtool.metrics.translation import check_lengths
from seqtool.runtime.files import parse_json, read_lines
from seqtool.runtime.network import LibraryDownload

if TYPE_CHECKING:
    from seqtool.predict.translator import Translator

Split = Callable[[str], list[str]]


def read_test_set(settings: EvaluationSettings, hypotheses: Sequence[str] | None = None) -> tuple[list[Segment], Split]:
    """testset=NAME, or references=FILE,… with sources=FILE and gold=FILE if they are given; and how a text is split
    into the words that alignments number.

    hypotheses: lines to which the texts must be parallel; without any, they must be so to the sources
    """
    if settings.testset is not None:
        sources, *references = _sacrebleu_texts(settings.testset, settings.langpair)
        reference_names = [f"testset={settings.testset}"] * len(references)
    else:
        sources = [] if settings.sources is None else list(read_lines(Path(settings.sources)))
        references = [list(read_lines(Path(file))) for file in settings.references]
        reference_names = settings.references
    lines = sources if hypotheses is None else hypotheses
    name = str(settings.hypotheses or settings.sources or f"testset={settings.testset}")
    check_lengths(lines, references, name=name, reference_names=reference_names)
    if settings.sources is not None:
        check_lengths(lines, [sources], name=name, reference_names=[settings.sources])
    golds, split = None, SPLITS[settings.words or "spaces"]
    if settings.gold is not None:
        texts = [sources, references[0], *([] if hypotheses is None else [hypotheses])]
        golds = read_alignments(settings.gold, texts, split, name=name)
    return _segments(sources, references, golds), split


def test_set_of(
    settings: EvaluationSettings, translator: "Translator", data: EvaluationData
) -> tuple[list[Segment], Split]:
    """The test set for a model: `read_test_set`, or a split of `data`."""
    from seqtool.runtime.distributed import first_here  # imports torch, which scoring files does without

    if settings.testset is not None:
        return first_here(partial(read_test_set, settings))
    if settings.sources is not None:
        return read_test_set(settings)
    corpus = data.corpus(TextCorpus, translator)
    if settings.split not in corpus.splits():
        raise InputError(
            f"Unknown split '{settings.split}'; this corpus has {', '.join(corpus.splits())}. "
            "For files of your own give sources=FILE references=FILE."
        )
    try:
        data.check_files(corpus)
        pairs = list(corpus.pairs(settings.split))
        alignments = corpus.alignments(settings.split)
    except InputError as missing:
        from seqtool.training import moved_data  # imports torch, which scoring files does without

        if data.checkpoint is None or moved_data.is_there(corpus, settings.split):
            raise
        own = translator.config["data"]
        cached = moved_data.texts(data.checkpoint, own, settings.split)
        if cached is None:
            raise InputError(f"{missing} {moved_data.how_to_find(data.checkpoint, own, [settings.split])}") from missing
        pairs = list(zip(cached.texts("source"), cached.texts("target"), strict=True))
        alignments = cached.alignments()
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    split = corpus.words if settings.words is None else SPLITS[settings.words]
    golds = None if alignments is None else [parse_pharaoh(line) for line in alignments]
    if golds is not None:
        _check_links(golds, [sources, targets], split, name=f"The gold alignments of {settings.split}")
    return _segments(sources, [targets], golds), split


def _segments(
    sources: Sequence[str], references: Sequence[Sequence[str]], golds: Sequence[Gold] | None
) -> list[Segment]:
    """From the lines of whole texts; sources are empty if they are unknown."""
    rows = zip(zip(*references, strict=True), sources or repeat(None), golds or repeat(None), strict=False)
    return [Segment(number, *row) for number, row in enumerate(rows, 1)]


def read_translations(path: str) -> list[str]:
    """The lines of a file, or the best translation of each line of what `translate format=jsonl` wrote."""
    lines = list(read_lines(Path(path)))
    if not lines[0].startswith('{"source": '):
        return lines
    translations = []
    for number, line in enumerate(lines, 1):
        try:
            translations.append(str(parse_json(line)["translations"][0]["text"]))
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(f"{path} line {number:,} is not what translate format=jsonl writes.") from error
    return translations


def read_alignments(path: str, texts: Sequence[Sequence[str]], split: Split, *, name: str) -> list[Gold]:
    """A file of alignments in Pharaoh format.

    texts: the sources, and one or more texts for them; each link is between a word of the source and one of one text
    split: how a line is split into words
    name: the file with the lines that are aligned, for messages
    """
    alignments = [parse_pharaoh(line, place=f"{path} line {n:,}") for n, line in enumerate(read_lines(Path(path)), 1)]
    if len(alignments) != len(texts[0]):
        counts = f"{path} has {len(alignments):,} lines but {name} has {len(texts[0]):,}"
        raise InputError(f"{counts}: they must be of the same sentences.")
    _check_links(alignments, texts, split, name=path)
    return alignments


def _check_links(alignments: Sequence[Gold], texts: Sequence[Sequence[str]], split: Split, *, name: str) -> None:
    """Raise InputError for a link of a word that neither the source nor, for the other side, one of the texts has."""
    for number, ((sure, possible), *lines) in enumerate(zip(alignments, *texts, strict=True), 1):
        source_words, *target_words = (len(split(line)) for line in lines)
        most = max(target_words)
        for i, j in sorted(sure | possible):
            if i >= source_words or j >= most:
                raise InputError(
                    f"{name} line {number:,} has the link {i}-{j}, but its sentences have {source_words} and "
                    f"{most} words, counted from 0: words are what white space separates, unless words=marks or "
                    "words=characters says what else the links number. Give the text, tokenised if need be, that the "
                    "alignments are of."
                )


def _sacrebleu_texts(name: str, langpair: str | None) -> list[list[str]]:
    """The lines of the source and of each reference, from the user's files or as sacreBLEU downloads them."""
    available = sacrebleu.get_available_testsets()
    if name not in available:
        raise InputError(f"Unknown testset '{name}'; sacreBLEU has {', '.join(available[:8])}, …")
    pairs = sacrebleu.get_langpairs_for_testset(name)
    if langpair not in pairs:
        raise InputError(f"testset={name} needs langpair=…, one of {', '.join(pairs)}.")
    place = Path(sacrebleu.utils.SACREBLEU_DIR, name, f"{name.replace('/', '_')}.{langpair}")
    own = [Path(f"{place}.src"), Path(f"{place}.ref")]  # where sacreBLEU keeps them, and users may put them
    texts = [list(read_lines(file)) for file in own if file.is_file()]
    if len(texts) == 2 and len(texts[0]) == len(texts[1]):
        return texts
    download = LibraryDownload(
        what=f"testset={name}",
        by_hand=f"put its text, a sentence a line, into {own[0]} and {own[1]}",
        addresses=sacrebleu.DATASETS[name].data or [],
    )
    files = download.run(
        lambda: [sacrebleu.get_source_file(name, langpair), *sacrebleu.get_reference_files(name, langpair)]
    )
    return [list(read_lines(Path(file))) for file in files]
