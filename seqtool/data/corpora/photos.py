"""Your own photos with your own captions."""

import hashlib
import logging
from functools import cache
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora.caption_files import Captions, Entry, captioned, check_captions, read_captions
from seqtool.data.corpora.caption_sources import KARPATHY_SPLITS, CaptionFiles
from seqtool.data.corpora.corpus import SPLITS, Captioned, Digest
from seqtool.data.images.finding import in_folder
from seqtool.errors import InputError

log = logging.getLogger("seqtool")


@final
class Photos(CaptionFiles):
    """Your own photos: a folder, and files of captions in any form that `caption_files` reads.

    `valid` and `test` are separate files. Without `valid` it is a share of the images of `train`, and so is `test` if
    neither is a file. Which images those are depends only on the file names, not on their order; Karpathy's files say.
    """

    name = "photos"

    def __init__(
        self, *, directory: str, train: str, valid: str | None, test: str | None, valid_share: float, test_share: float
    ) -> None:
        self._directory = Path(directory)
        named = {"train": train, "valid": valid, "test": test}
        self._files = {split: Path(name) for split, name in named.items() if name is not None}
        self._advice = {split: f"set data.{split} to a file of captions." for split in named}
        shares = {"valid": valid_share, "test": test_share} if valid is None else {}
        self._shares = {split: share for split, share in shares.items() if split not in self._files}
        if min(valid_share, test_share) < 0 or valid_share + test_share >= 1:
            raise InputError(
                f"data.valid_share is {valid_share:g} and data.test_share {test_share:g}: "
                "they must be at least 0 and leave something to train on."
            )
        self._entries = cache(self._read)

    def splits(self) -> tuple[str, ...]:
        shared = (split for split, share in self._shares.items() if share > 0)
        return tuple(sorted({*self._files, *shared}, key=SPLITS.index))

    def images(self, split: str) -> list[Captioned]:
        file = self._files.get(split, self._files["train"])
        entries, paths = self._entries(file)
        chosen = self._divided(entries)[split] if self._shares and file == self._files["train"] else entries
        images = {name: entries[name] for name in entries if name in chosen}
        return captioned(self._directory, images, paths)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {**super().fingerprint(digest), "shares": self._shares}

    def _read(self, file: Path) -> tuple[Captions[Entry], dict[str, str]]:
        """The captions of a file, by image, without the images that have none; and these images' paths, by name."""
        entries = read_captions(file)
        check_captions(entry for of_image in entries.values() for entry in of_image)
        if bare := [image for image, captions in entries.items() if not captions]:
            log.warning("%s has no captions of %s images, such as %s: left out.", file, f"{len(bare):,}", bare[0])
        for image in bare:
            del entries[image]
        return entries, in_folder(self._directory, (of_image[0].image for of_image in entries.values()), file=file)

    def _divided(self, entries: Captions[Entry]) -> dict[str, set[str]]:
        """With the names ordered by hash, the first are `valid` and the next `test`: at least one each. A file with
        images of all these splits has its own.
        """
        splits: dict[str, set[str]] = {}
        for name, of_image in entries.items():
            splits.setdefault(KARPATHY_SPLITS.get(of_image[0].split or "", ""), set()).add(name)
        if splits.keys() >= {"train", *self.splits()}:
            return splits
        names = sorted(entries, key=lambda name: hashlib.sha256(name.encode(errors="replace")).digest())
        total, divided = len(names), {}
        for split, share in self._shares.items():
            count = max(1, round(total * share)) if share > 0 else 0
            divided[split], names = set(names[:count]), names[count:]
        if not names:
            raise InputError(f"{self._files['train']} has captions of {total} images: too few to divide into splits.")
        return {"train": set(names), **divided}
