"""Finds the data that a checkpoint was trained with, even if they or the checkpoint have moved.

A checkpoint records the settings of its data and the digests of the files, which tell whether these have changed.

- A run that resumes reads the files at the recorded paths, or at new ones that the user gives. If they are gone, it
  uses the cache that was prepared from files with the same digests (`prepare_or_reuse`).
- `eval` looks a relative path up in the working directory, then where the run was started (`data_settings`).
"""

import hashlib
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
from seqtool.runtime.log import log
from seqtool.settings import Config, declarations, plain, resolved
from seqtool.settings.classes import build
from seqtool.training.checkpoint import Checkpoint, run_directory, sha256

SOURCES = tuple(declarations.declared(declarations.Sources))  # the names of corpora's settings that name files
CONTENT = "content"  # a key of a checkpoint's data: the digest of its images, without their names


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
    """The settings of the checkpoint's data with `overrides`, and with paths at which the split's files exist. Files
    that the checkpoint was trained with are preferred; for other files there is a warning.
    """
    stored = {**checkpoint.config.get("data", {}), **overrides}
    changed_data = None
    for values in (stored, _with_original_paths(checkpoint, stored, overrides)):
        data = cast(DictConfig, resolved({"data": values}).data)
        corpus = build(corpus_settings(data), trusted=checkpoint.trust, base=Corpus)
        if split in corpus.splits() and split_exists(corpus, split):
            if overrides.keys() & set(SOURCES) or _is_recorded(checkpoint, corpus, split):
                return data
            changed_data = changed_data or data
    if changed_data is not None:
        log.warning("The data have changed since %s was trained: scoring the data as they are now.", checkpoint.path)
        return changed_data
    return cast(DictConfig, resolved({"data": stored}).data)


def _with_original_paths(
    checkpoint: Checkpoint, values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings, with paths that are not overridden taken relative to where the run was started, if they exist."""
    directory = _original_directory(checkpoint)

    def resolve_original(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve_original(item) for item in value]
        exists = isinstance(value, str) and os.path.exists(directory / value)  # noqa: PTH110 may be an invalid path
        return str(directory / value) if exists else value

    paths = {*SOURCES, "cache"} & (values.keys() - overrides.keys())
    return {name: resolve_original(value) if name in paths else value for name, value in values.items()}


def _original_directory(checkpoint: Checkpoint) -> Path:
    """Where the run was started, if the checkpoint is in runs/NAME/checkpoints; otherwise the current directory."""
    path = checkpoint.path.resolve()
    run = run_directory(path)
    return run.parents[1] if run != path and len(run.parents) > 1 else Path()


def split_exists(corpus: Corpus, split: str) -> bool:
    """Whether the split's files exist."""
    if isinstance(corpus, FileCorpus):
        return all(map(os.path.exists, corpus.files[split]))  # also for invalid paths
    try:
        corpus.check()
    except InputError:
        return False
    return True


def _is_recorded(checkpoint: Checkpoint, corpus: Corpus, split: str) -> bool:
    """Whether the split has the digests that the checkpoint recorded; true if it recorded none."""
    if isinstance(corpus, FileCorpus):
        files = corpus.files[split]
        return split not in checkpoint.data or checkpoint.data[split] == [_digest(path) for path in files]
    return all(checkpoint.data.get(name, digest) == digest for name, digest in corpus.fingerprint(_digest).items())


def _digest(path: Path) -> str:
    return sha256(check_file(path))


def prepare_or_reuse(checkpoint: Checkpoint, data: Config, base: type[Corpus], prepare: Callable[[], Cache]) -> Cache:
    """The cache that `prepare` makes for a run that resumes; if the text's files are gone, the run's previous cache."""
    try:
        return prepare()
    except InputError as error:
        corpus, old, new = make_corpus(data, base, trusted=True), checkpoint.config.get("data", {}), plain(data)
        missing = [split for split in corpus.splits() if not split_exists(corpus, split)]
        if not missing:
            raise
        if any(new.get(name) != old.get(name) for name in SOURCES):  # the user gave new paths
            missing_settings = [f"data.{name}=…" for name in missing if new.get(name) == old.get(name) is not None]
            if not missing_settings:
                raise
            raise InputError(f"{error} If it was moved too, add {' '.join(missing_settings)}.") from error
        cache = find_cache(checkpoint, data)
        if cache is None:
            raise InputError(f"{error} {missing_data_advice(checkpoint, data, missing)}") from error
        log.info("%s Using the prepared data in %s.", error, cache.directory)
        return cache


def find_cache(checkpoint: Checkpoint, data: Config) -> Cache | None:
    """The complete cache with which the checkpoint was trained, if it still exists."""
    settings = cache_settings(data)
    limits, clean = asdict(settings.limits), settings.clean or None
    summaries = [file for root in _cache_directories(checkpoint, data) for file in sorted(root.glob(f"*/{SUMMARY}"))]
    for file in summaries:
        with suppress(OSError, ValueError, KeyError, TypeError):  # the cache is damaged, or of another type or version
            inputs = read_record(file)["inputs"]
            cached_digests = {**inputs["text"], **({"images": inputs["images"]} if "images" in inputs else {})}
            recorded_digests = {
                name: digest for name, digest in checkpoint.data.items() if name != CONTENT or name in cached_digests
            }
            if (cached_digests, inputs.get("limits"), inputs.get("clean")) == (recorded_digests, limits, clean):
                cache = Cache(file.parent)
                files = [(checkpoint.path / file.name, file) for file in cache.vocabulary_files]
                if all(stored.is_file() and stored.read_bytes() == cached.read_bytes() for stored, cached in files):
                    return cache
    return None


def texts(checkpoint: Checkpoint, data: Config, split: str) -> Split | None:
    """The split in the checkpoint's cache if both exist; caches hold no text of the training split."""
    cache = find_cache(checkpoint, data)
    return cache.split(split) if cache is not None and split in cache.splits and split != "train" else None


def missing_data_advice(checkpoint: Checkpoint, data: Config, splits: Sequence[str]) -> str:
    """The end of the error message about missing files of these splits."""
    values = plain(data)
    names = [split for split in splits if isinstance(values.get(split), str | list)]
    names = names or [name for name in SOURCES if isinstance(values.get(name), str | list)]
    settings = " or ".join(f"data.{name}=…" for name in names)
    caches = " and ".join(map(str, _cache_directories(checkpoint, data)))
    return f"No cache of it is in {caches} either: give the files with {settings}, or the caches with data.cache=…."


def _cache_directories(checkpoint: Checkpoint, data: Config) -> list[Path]:
    """The directories with caches: `data.cache`, relative to the working directory and to where the run was started."""
    name = plain(data).get("cache")
    if not isinstance(name, str):
        return []
    current, original = Path(name), _original_directory(checkpoint) / name
    return [current] if current.resolve() == original.resolve() else [current, original]
