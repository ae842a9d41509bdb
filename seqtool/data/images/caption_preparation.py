"""Preparing images with captions: images checked and stored, captions encoded by one vocabulary."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from seqtool.data.cache import OFFSET, REFUSED, Cache
from seqtool.data.corpora.corpus import Captioned, ImageCorpus
from seqtool.data.images.image_store import ImageStore, prepare_store
from seqtool.data.preparation import CacheSettings, Steps, prepare
from seqtool.data.text.encoding import Texts
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings
from seqtool.runtime.files import one_line, write_lines
from seqtool.settings import Config

STOP = re.compile(r"[\s.]+$")  # captions end in a full stop in some corpora only; no metric counts it
log = logging.getLogger("seqtool")


def prepare_captions(
    config: Config,
    encoder: EncoderSettings,
    *,
    device: torch.device,
    needs: Sequence[str] = (),
) -> Cache:
    """The cache of the captions that `config`, the settings under `data`, describes, and the store of their images for
    `encoder`; see `prepare`. The store is made on `device` if it does not exist.
    """
    steps = partial(CaptionSteps, encoder=encoder, device=device)
    return prepare(config, ImageCorpus, steps, needs=needs)


@final
class CaptionSteps(Steps):
    """The captions of images that are in a store; the original captions are kept as references."""

    corpus: ImageCorpus
    store: ImageStore
    unit = "captions"
    training = "captions of the split 'train'"

    def __init__(
        self, corpus: ImageCorpus, settings: CacheSettings, *, encoder: EncoderSettings, device: torch.device
    ) -> None:
        """Stores the images. Raises InputError if a split has none that can be used."""
        splits = {split: corpus.images(split) for split in corpus.splits()}
        files = list(dict.fromkeys(image.file for images in splits.values() for image in images))
        root = Path(settings.cache)
        self.store = store = prepare_store(files, encoder, root=root, processes=settings.processes, device=device)
        self._rows = dict(zip(files, store.rows.tolist(), strict=True))
        self._reasons = {files[i]: reason for i, reason in store.refused.items()}
        self._used: dict[str, list[Captioned]] = {}
        self._refused: dict[str, list[Captioned]] = {}
        digests = dict(zip(files, store.digests, strict=True))
        content = hashlib.sha256()  # of the images and of their names, which are in the cache too
        for split, images in splits.items():
            self._used[split] = [image for image in images if image.file not in self._reasons]
            self._refused[split] = [image for image in images if image.file in self._reasons]
            if not self._used[split]:
                first = f"; {self._reasons[images[0].file]}" if images else "."
                raise InputError(f"None of the {len(images):,} images of the split '{split}' can be used{first}")
            used = [[str(image.file), image.identifier, digests[image.file]] for image in self._used[split]]
            refused = [self._reasons[image.file] for image in self._refused[split]]
            content.update(json.dumps([split, used, refused]).encode())
        super().__init__(corpus, settings, corpus.name, {"images": content.hexdigest()})

    def texts(self, split: str) -> Iterator[Texts]:
        """The captions without their final full stop."""
        return ((STOP.sub("", caption),) for image in self._used[split] for caption in image.captions)

    def image_of(self, split: str) -> NDArray[np.int64]:
        counts = [len(image.captions) for image in self._used[split]]
        return np.repeat(np.arange(len(counts)), counts)

    def write_others(self, directory: Path, split: str) -> None:
        used = self._used[split]
        rows = [self._rows[image.file] for image in used]
        (directory / f"{split}.rows.bin").write_bytes(np.array(rows, OFFSET).tobytes())
        records = (
            {"identifier": image.identifier, "file": str(image.file), "captions": image.captions} for image in used
        )
        write_lines(directory / f"{split}.images.jsonl", map(json.dumps, records))

    def dropped(self, split: str) -> Counter[str]:
        return Counter({"of refused images": sum(len(image.captions) for image in self._refused[split])})

    def summary(self, directory: Path) -> dict[str, Any]:
        refused = ((split, self._reasons[image.file]) for split, images in self._refused.items() for image in images)
        write_lines(directory / REFUSED, (f"{split}\t{one_line(why)}" for split, why in refused))
        if self.store.refused:
            file = directory.with_suffix("") / REFUSED  # when the cache is complete
            log.warning("%s images cannot be used: %s says why", f"{len(self.store.refused):,}", file)
        return {}

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        return {"images": len(self._used[split]), **counts, "refused": len(self._refused[split])}
