"""The image store: annotation vectors, or pixels, of many images, made once and read memory-mapped.

    cache/images-vgg19-1f2e3d4c5b6a/
        values.bin      float16 annotation vectors N×S×D, or uint8 pixels N×3×size×size (cache/images-pixels-…)
        digests.txt     SHA-256 of each row's image file, sorted: row i is whichever file has the i-th content
        summary.json    grid, dimension, backbone, a hash of its weights, which images were refused and why, versions

It is named by the content of the images and by what the backbone computes from them, not by file names, splits or
captions: corpora that share their images share the store.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from seqtool.data.batches import Annotations, Pixels
from seqtool.data.directories import SUMMARY, make_once, place, read_summary, versions
from seqtool.data.image_digests import ImageDigests
from seqtool.data.image_loading import load
from seqtool.data.images import ImageError, open_image
from seqtool.errors import InputError
from seqtool.models.backbone import Backbone, EncoderSettings, backbone_fingerprint, make_backbone

FORMAT = 2  # of the directory; part of what names it
VALUES, DIGESTS = "values.bin", "digests.txt"
MOST = torch.finfo(torch.float16).max  # 65,504
log = logging.getLogger("seqtool")


class ImageStore:
    """What is stored of images, by row.

    Of the files that the store was prepared for: digests, of their content, None where there is none; rows, -1 where
    the image is refused; refused, a sentence that says why, by the file's index. locations: rows and columns of the
    grid, and dimension of an annotation vector; None for pixels.
    """

    def __init__(self, directory: Path, files: Sequence[Path] = (), digests: Sequence[str | None] = ()) -> None:
        """Raises InputError unless the directory is a whole store."""
        self.directory = directory
        self.summary = summary = read_summary(directory, form=FORMAT, kind="an image store")
        self.locations: tuple[int, int] | None = None
        self.dimension: int | None = None
        try:
            if summary["locations"] is not None:
                rows, columns = summary["locations"]
                self.locations, self.dimension = (rows, columns), summary["dimension"]
            kind = "|u1" if self.locations is None else "<f2"
            _, _, *others = shape = tuple(summary["shape"])
            if summary["type"] != kind or len(others) != (2 if self.locations is None else 1):
                raise ValueError("another type or shape")
            self._values = np.memmap(directory / VALUES, kind, mode="r", shape=shape)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{directory / SUMMARY} is damaged: remove {directory} and prepare again.") from error
        known = {digest: row for row, digest in enumerate((directory / DIGESTS).read_text().split())}
        self.digests = digests
        self.rows = np.array([known.get(digest or "", -1) for digest in digests], np.int64)
        self.refused = {i: self._reason(files[i], digests[i]) for i in np.flatnonzero(self.rows < 0).tolist()}

    def __len__(self) -> int:
        return len(self._values)

    def source(self, rows: Sequence[int] | NDArray[np.integer]) -> Annotations | Pixels:
        """What a captioner's encoder reads of the images in these rows; one gather from the mapped file."""
        values = torch.from_numpy(np.asarray(self._values[np.asarray(rows, np.int64)]))
        return Pixels(values) if self.locations is None else Annotations(values)

    def fits(self, backbone: nn.Module) -> bool:
        """Whether what is stored is what this backbone reads or gives: annotation vectors are those of its weights."""
        return self.locations is None or self.summary["weights"] == weights_digest(backbone)

    def describe(self) -> str:
        """A line: what is stored, of which backbone, how much."""
        summary, shape = self.summary, self._values.shape
        size = f"{shape[0]:,} images, {_bytes(self._values.nbytes)}"
        if self.locations is None:
            return f"pixels {shape[2]}×{shape[3]} ({summary['fit']}): {size}"
        layer = f", layer {summary['layer']}" if summary["layer"] is not None else ""
        rows, columns = self.locations
        return f"annotation vectors {rows}×{columns}×{self.dimension} ({summary['backbone']}{layer}): {size}"

    def _reason(self, file: Path, digest: str | None) -> str:
        reason = self.summary["refused"].get(digest)
        if reason is not None:
            return f"{file} {reason}"
        return _unreadable(file)


def prepare_store(
    files: Sequence[Path],
    encoder: EncoderSettings,
    *,
    root: Path,
    processes: int | None,
    device: torch.device,
) -> ImageStore:
    """The store of these images, made in the directory `root` if it is not there.

    A frozen encoder's annotation vectors are stored, rounded to float16; of an encoder that is trained too, the pixels
    that it reads. An image that is named twice, or two files of equal content, share a row. Images that cannot be
    read are left out. `processes` read the images; the backbone runs in this one, on `device`. Raises InputError
    where no image can be used, or the disk has no room.
    """
    encoder.check()
    root.mkdir(parents=True, exist_ok=True)
    digest = ImageDigests(root / "digests.json")
    digests = digest.of(files)
    distinct = {one: file for one, file in zip(digests, files, strict=True) if one is not None}
    inputs: dict[str, Any] = {"format": FORMAT, "images": sorted(distinct), "pixels": [encoder.size, encoder.fit]}
    name = "images-pixels"
    if encoder.fine_tune_from is None:
        name = f"images-{encoder.backbone.rpartition('/')[2]}"
        inputs["backbone"] = backbone_fingerprint(encoder, digest)
    directory = place(root, name, inputs)

    def fill(unfinished: Path) -> dict[str, Any]:
        summary = _fill(unfinished, distinct, encoder, processes=processes, device=device)
        return {**summary, "inputs": {**inputs, "images": len(distinct)}}

    if not distinct:
        raise InputError(f"None of the {len(files):,} images can be used; {_unreadable(files[0])}")
    make_once(directory, fill)
    return ImageStore(directory, files, digests)


def weights_digest(module: nn.Module) -> str:
    """A hash of all parameters and buffers: names, types, shapes and bytes."""
    content = hashlib.sha256()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def is_store(path: Path) -> bool:
    """Whether the directory was made by `prepare_store`."""
    return (path / SUMMARY).is_file() and (path / DIGESTS).is_file()


def _fill(
    directory: Path,
    distinct: dict[str, Path],
    encoder: EncoderSettings,
    *,
    processes: int | None,
    device: torch.device,
) -> dict[str, Any]:
    """Everything in the store but its summary, which is returned."""
    digests = sorted(distinct)
    backbone = make_backbone(encoder, pretrained=True).to(device).eval() if encoder.fine_tune_from is None else None
    shape: tuple[int, ...] = (3, encoder.size, encoder.size)
    kind: np.dtype[Any] = np.dtype("u1")
    if backbone is not None:
        shape, kind = (backbone.locations[0] * backbone.locations[1], backbone.dimension), np.dtype("<f2")
    _check_room(directory, len(digests) * int(np.prod(shape)) * kind.itemsize, len(digests))
    done, refused = 0, dict[str, str]()
    images = [distinct[one] for one in digests]
    with (
        closing(load(images, size=encoder.size, mode=encoder.fit, processes=processes)) as chunks,
        (directory / VALUES).open("wb") as file,
        tqdm(total=len(images), unit=" images", desc="Images", disable=None) as bar,
    ):
        for chunk in chunks:
            if len(chunk.pixels):
                file.write(_encoded(chunk.pixels, backbone, encoder, device).tobytes())
            for one in (digests[done + position] for position in chunk.refused):
                refused[one] = _reason_in_content(distinct[one], one)
            read = len(chunk.pixels) + len(chunk.refused)
            done += read
            bar.update(read)
        file.flush()
        os.fsync(file.fileno())
    kept = [one for one in digests if one not in refused]
    if not kept:
        one, reason = next(iter(refused.items()))
        raise InputError(f"None of the {len(digests):,} images can be used; {distinct[one]} {reason}")
    (directory / DIGESTS).write_text("".join(f"{one}\n" for one in kept))
    return {
        "format": FORMAT,
        "shape": [len(kept), *shape],
        "type": kind.str,
        "locations": None if backbone is None else list(backbone.locations),
        "dimension": None if backbone is None else backbone.dimension,
        "backbone": None if backbone is None else encoder.backbone,
        "layer": None if backbone is None else encoder.layer,
        "weights": None if backbone is None else weights_digest(backbone),
        "fit": encoder.fit,
        "refused": refused,
        "versions": versions(torch=torch.__version__, pillow=PIL.__version__),
    }


def _reason_in_content(file: Path, digest: str) -> str:
    """Why the image is refused. This is kept for ever for its content, so it must lie in its content.

    InputError where it does not: where the file has gone or has changed, or its disk fails.
    """
    try:
        with file.open("rb") as stream:
            same = hashlib.file_digest(stream, "sha256").hexdigest() == digest
            stream.seek(0)
            if same:
                open_image(stream, name=str(file))
    except ImageError as error:
        return error.reason
    except OSError as error:
        raise InputError(f"{file} can no longer be read ({error.strerror}): prepare again once it can.") from error
    problem = "could not be read and now can" if same else "changed while it was read"
    raise InputError(f"{file} {problem}: prepare again.")


def _encoded(
    pixels: NDArray[np.uint8], backbone: Backbone | None, encoder: EncoderSettings, device: torch.device
) -> NDArray[Any]:
    """The rows of these images."""
    if backbone is None:
        return pixels
    with torch.inference_mode():
        annotations = backbone(torch.from_numpy(pixels).to(device))
        largest = float(annotations.abs().max())
        if not largest <= MOST:  # nor where it is NaN
            layer = "the last layer" if encoder.layer is None else f"layer {encoder.layer}"
            raise InputError(
                f"The annotation vectors of {encoder.backbone}, {layer}, reach {largest:,.0f}, and float16 holds "
                f"{MOST:,.0f} at most: choose another model.encoder.layer."
            )
        values: NDArray[np.float16] = annotations.half().cpu().numpy()
    return values


def _check_room(directory: Path, need: int, images: int) -> None:
    free = shutil.disk_usage(directory).free
    log.info("%s: %s bytes (%s) for %s images", directory.with_suffix(""), f"{need:,}", _bytes(need), f"{images:,}")
    if need > free:
        raise InputError(
            f"The image store needs {_bytes(need)} and {directory.parent} has {_bytes(free)} free: "
            "set data.cache to a directory on a larger disk."
        )


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _unreadable(file: Path) -> str:
    """Why the file has no digest."""
    try:
        open_image(file, name=str(file))
    except ImageError as error:
        return str(error)
    return f"{file} could not be read at first."
