"""Your own photos with your own captions."""

import hashlib
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora.caption_files import captioned, read_captions
from seqtool.data.corpora.caption_sources import CaptionFiles
from seqtool.data.corpora.corpus import Captioned, Digest
from seqtool.errors import InputError


@final
class Photos(CaptionFiles):
    """Your own photos: a folder, and captions in JSONL or CSV.

    `valid` and `test` are separate files or, if neither is given, shares of the images of `train`. Which
    images those are depends only on the file names, not on their order.
    """

    name = "photos"

    def __init__(
        self, *, directory: str, train: str, valid: str | None, test: str | None, valid_share: float, test_share: float
    ) -> None:
        self._directory = Path(directory)
        named = {"train": train, "valid": valid, "test": test}
        self._files = {split: Path(name) for split, name in named.items() if name is not None}
        self._advice = {split: f"set data.{split} to a .jsonl or .csv file of captions." for split in named}
        self._shares = {"valid": valid_share, "test": test_share} if set(self._files) == {"train"} else {}
        if min(valid_share, test_share) < 0 or valid_share + test_share >= 1:
            raise InputError(
                f"data.valid_share is {valid_share:g} and data.test_share {test_share:g}: "
                "they must be at least 0 and leave something to train on."
            )

    def files(self) -> dict[str, Path]:
        return self._files

    def splits(self) -> tuple[str, ...]:
        return (*self._files, *(split for split, share in self._shares.items() if share > 0))

    def images(self, split: str) -> list[Captioned]:
        entries = read_captions(self._files.get(split, self._files["train"]))
        chosen = self._divided(list(entries))[split] if self._shares else entries
        return [captioned(self._directory, found) for name, found in entries.items() if name in chosen]

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {**super().fingerprint(digest), "shares": self._shares}

    def _divided(self, names: list[str]) -> dict[str, set[str]]:
        """With the names ordered by hash, the first are `valid` and the next `test`: at least one each."""
        names = sorted(names, key=lambda name: hashlib.sha256(name.encode(errors="replace")).digest())
        total, divided = len(names), {}
        for split, share in self._shares.items():
            count = max(1, round(total * share)) if share > 0 else 0
            divided[split], names = set(names[:count]), names[count:]
        if not names:
            raise InputError(f"{self._files['train']} has captions of {total} images: too few to divide into splits.")
        return {"train": set(names), **divided}
