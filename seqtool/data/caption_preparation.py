"""Preparing images with captions: images checked and stored, a vocabulary learnt, every caption encoded once."""

import hashlib
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch

from seqtool.config import Config, build
from seqtool.data.cache import OFFSET, SideWriter, write_lines
from seqtool.data.caption_cache import FORMAT, REFUSED, CaptionCache, load_target
from seqtool.data.captioning import Captioned, ImageCorpus
from seqtool.data.digests import Digests
from seqtool.data.directories import make_once, place, versions
from seqtool.data.encoding import LimitSettings, Side, token_type
from seqtool.data.image_store import prepare_store
from seqtool.data.preparation import SEED, CacheSettings, cache_settings, corpus_settings, vocabulary_directory
from seqtool.data.text_files import one_line
from seqtool.data.vocabulary import TARGET, UNK, Vocabulary
from seqtool.data.vocabulary_training import VocabularySettings, train
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings

CHUNK = 10_000  # captions that are encoded together
STOP = re.compile(r"[\s.]+$")  # corpora differ in whether captions end in a full stop; no metric counts it
log = logging.getLogger("seqtool")


@dataclass(frozen=True)
class Images:
    """Of a split the images that are used, with their rows in the image store, and why the others are not.

    lost: how many captions the others have.
    """

    used: list[Captioned]
    rows: list[int]
    refused: list[str]
    lost: int


def prepare_captions(
    data: Config, encoder: EncoderSettings, *, device: torch.device, trusted: bool = True
) -> CaptionCache:
    """The cache of the captions that `data`, the settings under `data`, describes, and the store of its images for
    `encoder`; made, the store on `device`, where they are not there.

    Raises InputError on settings, text or images that cannot be used; then nothing is left behind. A process that
    finds another one at it waits. Not `trusted`: settings out of a checkpoint, which may only name corpora of this
    package.
    """
    settings = cache_settings(data)
    _check_one_sided(settings)
    if settings.vocabulary.reuse is not None:
        _reused(settings.vocabulary.reuse)  # a wrong one is refused before the images are read
    corpus = build(corpus_settings(data), trusted=trusted)
    if not isinstance(corpus, ImageCorpus):
        raise InputError(
            f"{type(corpus).__name__} has sentence pairs, not images: choose model=bahdanau or another translation "
            "model, or images with captions such as data=scenes."
        )
    root = Path(settings.cache)
    root.mkdir(parents=True, exist_ok=True)
    corpus.fetch() if trusted else corpus.check()
    splits = {split: corpus.images(split) for split in corpus.splits()}
    files = list(dict.fromkeys(image.file for images in splits.values() for image in images))
    store = prepare_store(files, encoder, root=root, processes=settings.processes, device=device)
    rows = dict(zip(files, store.rows.tolist(), strict=True))
    reasons = {files[i]: reason for i, reason in store.refused.items()}
    images = {split: _images(split, found, rows, reasons) for split, found in splits.items()}
    content = _content(images, dict(zip(files, store.digests, strict=True)))
    inputs = _inputs(corpus, settings, content, Digests(root / "digests.json"))
    directory = place(root, corpus.name, inputs)
    if make_once(directory, lambda unfinished: _fill(unfinished, corpus.name, images, settings, inputs)) and reasons:
        log.warning("%s images cannot be used: %s says why", f"{len(reasons):,}", directory / REFUSED)
    return CaptionCache(directory, store)


def _check_one_sided(settings: CacheSettings) -> None:
    """Raise InputError on settings that only mean something for two languages."""
    vocabulary = settings.vocabulary
    unused = {
        "data.vocabulary.joint=true": vocabulary.joint,
        f"data.vocabulary.source_size={vocabulary.source_size}": vocabulary.source_size is not None,
        f"data.vocabulary.target_size={vocabulary.target_size}": vocabulary.target_size is not None,
        f"data.limits.ratio={settings.limits.ratio}": settings.limits.ratio is not None,
    }
    for setting, given in unused.items():
        if given:
            raise InputError(f"{setting} is for translation: captions have one vocabulary and one side; leave it out.")


def _images(split: str, images: list[Captioned], rows: dict[Path, int], reasons: dict[Path, str]) -> Images:
    used = [image for image in images if image.file not in reasons]
    refused = [reasons[image.file] for image in images if image.file in reasons]
    if not used:
        first = f"; {refused[0]}" if refused else "."
        raise InputError(f"None of the {len(images):,} images of the split '{split}' can be used{first}")
    lost = sum(len(image.captions) for image in images if image.file in reasons)
    return Images(used, [rows[image.file] for image in used], refused, lost)


def _inputs(corpus: ImageCorpus, settings: CacheSettings, images: str, digest: Digests) -> dict[str, Any]:
    """Everything that the cache depends on: what its name is the hash of."""
    vocabulary: Any = asdict(settings.vocabulary)
    if settings.vocabulary.reuse is not None:
        vocabulary = _reused(settings.vocabulary.reuse).fingerprint
    return {
        "format": FORMAT,
        "corpus": corpus.name,
        "text": corpus.fingerprint(digest),
        "images": images,
        "vocabulary": vocabulary,
        "limits": asdict(settings.limits),
    }


def _content(images: Mapping[str, Images], digests: Mapping[Path, str | None]) -> str:
    """A hash of the images' content, and of their names, which the cache holds too."""
    content = hashlib.sha256()
    for split, one in images.items():
        used = [[str(image.file), image.identifier, digests[image.file]] for image in one.used]
        content.update(json.dumps([split, used, one.refused]).encode())
    return content.hexdigest()


def _fill(
    directory: Path, name: str, images: dict[str, Images], settings: CacheSettings, inputs: dict[str, Any]
) -> dict[str, Any]:
    """Everything in the cache but its summary, which is returned."""
    vocabulary = _vocabulary(images["train"].used, settings.vocabulary)
    vocabulary.save(directory / TARGET)
    splits = {split: _write_split(directory, split, one, vocabulary, settings.limits) for split, one in images.items()}
    write_lines(
        directory / REFUSED, (f"{split}\t{one_line(why)}" for split, one in images.items() for why in one.refused)
    )
    return {
        "corpus": name,
        "vocabulary": {"kind": vocabulary.kind, "size": len(vocabulary)},
        "token_type": token_type(vocabulary).str,
        "splits": splits,
        "inputs": inputs,
        "format": FORMAT,
        "versions": versions(sentencepiece=sentencepiece.__version__),
    }


def _vocabulary(images: Sequence[Captioned], settings: VocabularySettings) -> Vocabulary:
    """The one to be used again, or a new one, learnt from the training captions or from a sample of them."""
    if settings.reuse is not None:
        return _reused(settings.reuse)
    captions = [_sentence(caption) for image in images for caption in image.captions]
    if settings.kind != "word" and settings.sample is not None and settings.sample < len(captions):
        chosen = sorted(random.Random(SEED).sample(range(len(captions)), settings.sample))
        captions = [captions[i] for i in chosen]
    return train(captions, settings)


def _reused(name: str) -> Vocabulary:
    return load_target(vocabulary_directory(name))


def _sentence(caption: str) -> str:
    """What is learnt: the caption without its final full stop."""
    return STOP.sub("", caption)


def _write_split(
    directory: Path, split: str, images: Images, vocabulary: Vocabulary, limits: LimitSettings
) -> dict[str, Any]:
    """Write the files of a split; returns what was counted. Of training captions alone some are left out."""
    dropped: Counter[str] = Counter()
    if images.lost:
        dropped["of refused images"] = images.lost
    every = [(i, caption) for i, image in enumerate(images.used) for caption in image.captions]
    image_of = []
    with SideWriter(directory / f"{split}.target") as target:
        for chunk in _chunks(every):
            encoded = vocabulary.encode_batch([_sentence(caption) for _, caption in chunk])
            reasons = [limits.reason(len(ids), len(ids)) if split == "train" else None for ids in encoded]
            dropped.update(reason for reason in reasons if reason)
            target.write(_side([ids for ids, why in zip(encoded, reasons, strict=True) if why is None], vocabulary))
            image_of += [image for (image, _), why in zip(chunk, reasons, strict=True) if why is None]
    if not image_of:
        why = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise InputError(f"None of the {len(every):,} captions of the split '{split}' is within data.limits: {why}.")
    (directory / f"{split}.image_of.bin").write_bytes(np.array(image_of, OFFSET).tobytes())
    (directory / f"{split}.rows.bin").write_bytes(np.array(images.rows, OFFSET).tobytes())
    write_lines(
        directory / f"{split}.images.jsonl",
        (
            json.dumps({"identifier": one.identifier, "file": str(one.file), "captions": one.captions})
            for one in images.used
        ),
    )
    return {
        "images": len(images.used),
        "captions": target.sentences,
        "tokens": target.tokens,
        "unknown": target.unknown,
        "refused": len(images.refused),
        "dropped": dict(sorted(dropped.items())),
    }


def _side(sentences: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Side:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), token_type(vocabulary), int(lengths.sum()))
    return Side(tokens, lengths, int(np.count_nonzero(tokens == UNK)))


def _chunks(captions: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
    return (captions[start : start + CHUNK] for start in range(0, len(captions), CHUNK))
