"""Finds the data that a checkpoint was trained with, even if they or the checkpoint have moved.

A checkpoint records the settings of its data and the digests of the files. Settings may give new places; a relative
place is searched in the working directory, then where the run was started. Digests tell whether it is the same data.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig

from seqtool.data.cache import OFFSET, Cache, Split
from seqtool.data.corpora.corpus import Corpus, FileCorpus
from seqtool.data.directories import SUMMARY
from seqtool.data.images.image_store import DIGESTS
from seqtool.data.preparation import cache_settings, corpus_settings, make_corpus
from seqtool.errors import InputError
from seqtool.runtime.files import check_file, read_record
from seqtool.settings import Config, declarations, plain, resolved
from seqtool.settings.classes import build
from seqtool.training.checkpoint import Checkpoint, sha256

SOURCES = tuple(declarations.declared(declarations.Sources))  # the settings of corpora that name files
CONTENT = "content"  # the digest of the images of a checkpoint's data, whatever their names
log = logging.getLogger("seqtool")


def digests(cache: Cache) -> dict[str, Any]:
    """The digests that a checkpoint records of the data that it was trained with."""
    inputs = cache.summary["inputs"]
    if not cache.has_images:
        return dict(inputs["text"])
    content, images = hashlib.sha256(), (cache.store.directory / DIGESTS).read_text().split()
    for split in cache.splits:
        if split != "test":
            rows = np.fromfile(cache.directory / f"{split}.rows.bin", OFFSET)
            content.update("\n".join([split, *(images[row] for row in rows)]).encode())
    return {**inputs["text"], "images": inputs["images"], CONTENT: content.hexdigest()}


def data_settings(checkpoint: Checkpoint, overrides: Mapping[str, Any], split: str) -> DictConfig:
    """The settings of the checkpoint's data, overridden by `overrides`, with places where the split's files exist: if
    possible the files that the checkpoint was trained with, otherwise, with a warning, others.
    """
    stored = {**checkpoint.config.get("data", {}), **overrides}
    other = None
    for values in (stored, _from_the_start(checkpoint, stored, overrides)):
        data = cast(DictConfig, resolved({"data": values}).data)
        corpus = build(corpus_settings(data), trusted=checkpoint.trust, base=Corpus)
        if split in corpus.splits() and is_there(corpus, split):
            if overrides.keys() & set(SOURCES) or _is_recorded(checkpoint, corpus, split):
                return data
            other = other or data
    if other is not None:
        log.warning(
            "The data have changed since %s was trained with them: scoring them as they are now.", checkpoint.path
        )
        return other
    return cast(DictConfig, resolved({"data": stored}).data)


def _from_the_start(checkpoint: Checkpoint, values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, where places that are not overridden are those where the run was started, if they exist there."""
    started = _started(checkpoint)

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        there = isinstance(value, str) and os.path.exists(started / value)  # noqa: PTH110 any text may stand there
        return str(started / value) if there else value

    places = {*SOURCES, "cache"} & (values.keys() - overrides.keys())
    return {name: placed(value) if name in places else value for name, value in values.items()}


def _started(checkpoint: Checkpoint) -> Path:
    """The run's working directory, if the checkpoint is in its runs/NAME/checkpoints/; otherwise the current one."""
    path = checkpoint.path.resolve()
    return path.parents[3] if path.parent.name == "checkpoints" and len(path.parents) > 3 else Path()


def is_there(corpus: Corpus, split: str) -> bool:
    """Whether the split's files exist."""
    if isinstance(corpus, FileCorpus):
        return all(map(os.path.exists, corpus.files()[split]))  # names may be ones that no file can have
    try:
        corpus.check()
    except InputError:
        return False
    return True


def _is_recorded(checkpoint: Checkpoint, corpus: Corpus, split: str) -> bool:
    """Whether the split has the digests that the checkpoint recorded, if it recorded any."""
    if isinstance(corpus, FileCorpus):
        files = corpus.files()[split]
        return split not in checkpoint.data or checkpoint.data[split] == [_digest(path) for path in files]
    now = corpus.fingerprint(_digest)
    return all(checkpoint.data.get(name, digest) == digest for name, digest in now.items())


def _digest(path: Path) -> str:
    return sha256(check_file(path))


def prepared_again(checkpoint: Checkpoint, data: Config, kind: type[Corpus], prepare: Callable[[], Cache]) -> Cache:
    """What `prepare` makes of a text for a run that resumes; if the files are gone, the cache that it had."""
    try:
        return prepare()
    except InputError as error:
        corpus, before, now = make_corpus(data, kind, trusted=True), checkpoint.config.get("data", {}), plain(data)
        gone = [split for split in corpus.splits() if not is_there(corpus, split)]
        if not gone or any(now.get(name) != before.get(name) for name in SOURCES):  # the data are said to be elsewhere
            raise
        cache = trained_on(checkpoint, data)
        if cache is None:
            raise InputError(f"{error} {how_to_find(checkpoint, data, gone)}") from error
        log.info("%s Going on with what was prepared, %s.", error, cache.directory)
        return cache


def trained_on(checkpoint: Checkpoint, data: Config) -> Cache | None:
    """The complete cache of the data that the checkpoint was trained with, if it still exists."""
    limits = asdict(cache_settings(data).limits)
    for file in (file for root in _roots(checkpoint, data) for file in sorted(root.glob(f"*/{SUMMARY}"))):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one, or of another kind or version
            inputs = read_record(file)["inputs"]
            here = {**inputs["text"], **({"images": inputs["images"]} if "images" in inputs else {})}
            there = {name: digest for name, digest in checkpoint.data.items() if name != CONTENT or name in here}
            if here == there and inputs.get("limits") == limits:
                cache = Cache(file.parent)
                copies = [(checkpoint.path / file.name, file) for file in cache.vocabulary_files]
                if all(copy.is_file() and copy.read_bytes() == file.read_bytes() for copy, file in copies):
                    return cache
    return None


def texts(checkpoint: Checkpoint, data: Config, split: str) -> Split | None:
    """The split in the cache that the checkpoint was trained with, which has no text of the training split."""
    cache = trained_on(checkpoint, data)
    return cache.split(split) if cache is not None and split in cache.splits and split != "train" else None


def how_to_find(checkpoint: Checkpoint, data: Config, splits: Sequence[str]) -> str:
    """The end of the sentence about missing files of these splits."""
    values = plain(data)
    names = [split for split in splits if isinstance(values.get(split), str | list)]
    names = names or [name for name in SOURCES if isinstance(values.get(name), str | list)]
    places = " or ".join(f"data.{name}=…" for name in names)
    roots = " and ".join(map(str, _roots(checkpoint, data)))
    return f"No cache of it is in {roots} either: say where the files are, {places}, or the caches, data.cache=…."


def _roots(checkpoint: Checkpoint, data: Config) -> list[Path]:
    """Where to look for caches: as the settings say, relative to here and to where the run was started."""
    name = plain(data).get("cache")
    if not isinstance(name, str):
        return []
    here, there = Path(name), _started(checkpoint) / name
    return [here] if here.resolve() == there else [here, there]
