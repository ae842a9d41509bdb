"""The user's own photos and captions."""

import hashlib
from functools import cache, cached_property
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora.caption_files import Captions, Entry, check_captions, make_captioned, read_captions
from seqtool.data.corpora.caption_sources import KARPATHY_SPLITS, CaptionFiles
from seqtool.data.corpora.corpus import SPLITS, Captioned, Digest
from seqtool.data.images.finding import in_folder
from seqtool.errors import InputError, counted
from seqtool.runtime.log import log

FEW_IMAGES = 100  # with fewer, captions of a model that is trained on these alone are wrong or do not end


@final
class Photos(CaptionFiles):
    """Your own photos: a directory of images, and files of captions in any form that `caption_files` reads.

    configs/data/photos.yaml says what each argument is. If `train` gives the splits of its images, as Karpathy's files
    do, these are used. Otherwise the names of the images decide, not their order.
    """

    name = "photos"

    def __init__(
        self, *, directory: str, train: str, valid: str | None, test: str | None, valid_share: float, test_share: float
    ) -> None:
        self._directory = Path(directory)
        names = {"train": train, "valid": valid, "test": test}
        self.files = {split: Path(name) for split, name in names.items() if name is not None}
        self._advice = {split: f"set data.{split} to a file of captions." for split in names}
        shares = {"valid": valid_share, "test": test_share} if valid is None else {}
        self._shares = {split: share for split, share in shares.items() if split not in self.files}
        if min(valid_share, test_share) < 0 or valid_share + test_share >= 1:
            raise InputError(
                f"data.valid_share is {valid_share:g} and data.test_share {test_share:g}: "
                "they must be at least 0 and leave something to train on."
            )
        self._entries = cache(self._read)

    def splits(self) -> tuple[str, ...]:
        held_out_splits = (split for split, share in self._shares.items() if share > 0)
        return tuple(sorted({*self.files, *held_out_splits}, key=SPLITS.index))

    def images(self, split: str) -> list[Captioned]:
        file = self.files.get(split, self.files["train"])
        entries, paths = self._entries(file)
        split_entries = self._divided[split] if self._shares and file == self.files["train"] else entries
        images = {name: entries[name] for name in entries if name in split_entries}
        return make_captioned(self._directory, images, paths)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {**super().fingerprint(digest), "shares": self._shares}

    def _read(self, file: Path) -> tuple[Captions[Entry], dict[str, str]]:
        """Read the captions in a file, by image, and find the paths of images, by name.

        Images without captions are left out.
        """
        entries = read_captions(file)
        check_captions(entry for image_entries in entries.values() for entry in image_entries)
        if without_captions := [image for image, captions in entries.items() if not captions]:
            text = "%s has no captions of %s, such as %s: they are left out."
            log.warning(text, file, counted(len(without_captions), "image"), without_captions[0])
        for image in without_captions:
            del entries[image]
        if file == self.files["train"] and len(entries) < FEW_IMAGES:
            text = "%s has captions of %s: too few, unless the run starts from a model of more photos (init_from=RUN)."
            log.warning(text, file, counted(len(entries), "image"))
        names = (image_entries[0].image for image_entries in entries.values())
        return entries, in_folder(self._directory, names, file=file)

    @cached_property
    def _divided(self) -> dict[str, set[str]]:
        """The images of `train` in the splits that its file gives, if it gives all for which there is no other file;
        images without a split are left out.

        Otherwise the images are ordered by a hash of their names: the first are `valid`, the next are `test`, with at
        least one image each, and the remaining images are `train`.
        """
        file = self.files["train"]
        entries, _ = self._entries(file)
        splits: dict[str, set[str]] = {}  # the splits that the file gives
        needed = {"train", *(split for split, share in self._shares.items() if share > 0)}
        for name, image_entries in entries.items():
            splits.setdefault(KARPATHY_SPLITS.get(image_entries[0].split or "", ""), set()).add(name)
        if splits.keys() >= needed:
            if others := sorted(splits.get("", ())):
                text = "%s has %s without a split (one of %s), such as %s: they are left out."
                log.warning(text, file, counted(len(others), "image"), ", ".join(KARPATHY_SPLITS), others[0])
            return splits
        if given := splits.keys() - {""}:
            missing = " or ".join(sorted(needed - given))
            text = "%s has splits but no images for %s: they are not used, and names decide which images are held out. "
            log.warning(
                text + "data.valid_share=0 or data.test_share=0 leaves out a split that you do not need.", file, missing
            )
        names = sorted(entries, key=lambda name: hashlib.sha256(name.encode(errors="replace")).digest())
        total, held_out = len(names), {}
        for split, share in self._shares.items():
            count = max(1, round(total * share)) if share > 0 else 0
            held_out[split], names = set(names[:count]), names[count:]
        if not names:
            raise InputError(
                f"{file} has captions of {counted(total, 'image')}: too few to divide into splits, "
                f"each of which needs at least 1. Add images (at least {len(needed)}), or give another file of "
                "captions with data.valid=FILE."
            )
        return {"train": set(names), **held_out}
