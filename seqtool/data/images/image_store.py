"""Prepares images with captions.

The captions are encoded with one vocabulary. The images' annotation vectors, or pixels, are in an image store, which is
made once and memory-mapped:

    cache/images-vgg19-1f2e3d4c5b6a/
        values.bin      float16 annotation vectors N×S×D, or uint8 pixels N×3×size×size (cache/images-pixels-…)
        digests.txt     the SHA-256 of each row's image file, sorted
        summary.json    grid, dimension, backbone, a hash of its weights, the refused images with reasons, versions

The name of a store depends on the content of the images and on the backbone, not on file names, splits or captions, so
corpora with the same images share a store.
"""

import hashlib
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from torch import nn

from seqtool.data.cache import OFFSET, REFUSED, Cache
from seqtool.data.corpora.corpus import Captioned, ImageCorpus
from seqtool.data.directories import SUMMARY, Digests, Unfinished, directory_path, make_once, read_summary, versions
from seqtool.data.images.finding import images_in
from seqtool.data.images.image_decoding import ImageError, load, open_image
from seqtool.data.preparation import CacheSettings, Steps, Texts, prepare
from seqtool.errors import InputError, UnfinishedError, counted, out_of_memory
from seqtool.models.backbone import EncoderSettings, backbone_fingerprint, check_default_weights, make_backbone
from seqtool.models.inputs import Annotations, Pixels
from seqtool.runtime.devices import MODEL_TOO_LARGE
from seqtool.runtime.files import cut, one_line, write_lines
from seqtool.runtime.log import log
from seqtool.runtime.progress import progress_bar
from seqtool.settings import Config, names

Images = Sequence[tuple[str, Path]]  # the SHA-256 of each image's content, and a file that has it

FORMAT = 2  # the version of the directory's format, which enters the directory's name
VALUES, DIGESTS = "values.bin", "digests.txt"
MAX_FLOAT16 = torch.finfo(torch.float16).max  # 65,504
IMAGES_TOO_LARGE = (
    "while encoding images: lower model.encoder.size, or choose a smaller model.encoder.backbone or another device."
)
FINAL_STOP = re.compile(r"[\s.]+$")  # only some corpora end captions in a full stop; no metric counts it


class ImageStore:
    """Stored annotation vectors or pixels, one row per image."""

    # Words such as left and right, with one of which an image's captions forbid to mirror it in training; an empty list
    # forbids it for all images.
    mirror_unless: Sequence[str] = ()

    def __init__(self, directory: Path, files: Sequence[Path] = (), digests: Sequence[str | None] = ()) -> None:
        """Open a store, and find `files`, which have these digests, in it. Raises InputError if it is incomplete."""
        self.directory = directory
        self.summary = summary = read_summary(directory, format_version=FORMAT, kind="an image store")
        self.locations: tuple[int, int] | None = None  # rows and columns of the grid of vectors; None for pixels
        try:
            if summary["locations"] is not None:
                rows, columns = summary["locations"]
                self.locations = rows, columns
            kind = "|u1" if self.locations is None else "<f2"
            shape = tuple(summary["shape"])
            if summary["type"] != kind or len(shape) != (4 if self.locations is None else 3):
                raise ValueError("wrong type or shape")
            self._values = np.memmap(directory / VALUES, kind, mode="r", shape=shape)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{directory / SUMMARY} is damaged: remove {directory} and prepare again.") from error
        row_by_digest = {digest: row for row, digest in enumerate((directory / DIGESTS).read_text().split())}
        self.digests = digests
        self.rows = np.array([row_by_digest.get(digest or "", -1) for digest in digests], np.int64)  # -1: refused
        self.refused: dict[int, str] = {}  # a sentence with the reason for each refused file, by its index
        for i in np.flatnonzero(self.rows < 0).tolist():
            reason = summary["refused"].get(digests[i])
            self.refused[i] = unreadable_reason(files[i]) if reason is None else f"{files[i]} {reason}"

    def __len__(self) -> int:
        return len(self._values)

    def source(
        self, rows: Sequence[int] | NDArray[np.integer], may_mirror: NDArray[np.bool_] | None = None
    ) -> Annotations | Pixels:
        """The input of a captioner for the images in these rows, read from the mapped file at once.

        may_mirror: whether each image may be mirrored in training; None if none may
        """
        values = torch.from_numpy(np.asarray(self._values[np.asarray(rows, np.int64)]))
        if self.locations is not None:
            return Annotations(values)
        return Pixels(values, may_mirror=None if may_mirror is None else torch.from_numpy(may_mirror))

    def fits(self, backbone: nn.Module) -> bool:
        """Whether a model with this backbone can use the store, which has pixels or this backbone's vectors."""
        return self.locations is None or self.summary["weights"] == weights_digest(backbone)

    def describe(self) -> str:
        """A line with the kind of the stored rows, their shape, backbone, number and size."""
        summary, shape = self.summary, self._values.shape
        size = f"{counted(shape[0], 'image')}, {size_text(self._values.nbytes)}"
        if self.locations is None:
            return f"pixels {shape[2]}×{shape[3]} ({summary['fit']}): {size}"
        layer = f", layer {summary['layer']}" if summary["layer"] is not None else ""
        rows, columns = self.locations
        return f"annotation vectors {rows}×{columns}×{shape[2]} ({summary['backbone']}{layer}): {size}"


def weights_digest(module: nn.Module) -> str:
    """A hash of the names, types, shapes and bytes of all parameters and buffers."""
    content = hashlib.sha256()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def is_store(path: Path) -> bool:
    """Whether the directory is an image store, as `prepare_store` makes it."""
    return (path / SUMMARY).is_file() and (path / DIGESTS).is_file()


# Preparing


def prepare_captions(
    config: Config, encoder: EncoderSettings, *, device: torch.device, needs: Sequence[str] = ()
) -> Cache:
    """Open or make the cache of the captions that `config`, the group `data`, describes (`prepare`), and the store of
    their images. The backbone computes on `device`.
    """
    steps = partial(CaptionSteps, encoder=encoder, device=device)
    return prepare(config, ImageCorpus, steps, needs=needs)


@final
class CaptionSteps(Steps):
    """The steps of preparing images with captions. The original captions are kept as references."""

    corpus: ImageCorpus
    store: ImageStore
    unit = "captions"
    training = "captions of the split 'train'"

    def __init__(
        self, corpus: ImageCorpus, settings: CacheSettings, *, encoder: EncoderSettings, device: torch.device
    ) -> None:
        """Make the image store. Raises InputError if no image of a split can be used."""
        splits = {split: corpus.images(split) for split in corpus.splits()}
        files = list(dict.fromkeys(image.file for images in splits.values() for image in images))
        root = Path(settings.cache)
        self.store = store = prepare_store(files, encoder, root=root, processes=settings.processes, device=device)
        self._rows = dict(zip(files, store.rows.tolist(), strict=True))
        self._reasons = {files[i]: reason for i, reason in store.refused.items()}
        self._used: dict[str, list[Captioned]] = {}
        self._refused: dict[str, list[Captioned]] = {}
        self._kept: dict[str, int] = {}  # the number of images of a split that have a caption which is not left out
        self._digests = digests = dict(zip(files, store.digests, strict=True))
        content = hashlib.sha256()  # a hash of the images and their names, since the cache has both
        for split, images in splits.items():
            self._used[split] = [image for image in images if image.file not in self._reasons]
            self._refused[split] = [image for image in images if image.file in self._reasons]
            if not self._used[split]:
                reason = f"; {self._reasons[images[0].file]}" if images else "."
                raise InputError(f"None of the {len(images):,} images of the split '{split}' can be used{reason}")
            used = [[str(image.file), image.identifier, digests[image.file]] for image in self._used[split]]
            refused = [[str(image.file), digests[image.file]] for image in self._refused[split]]
            content.update(json.dumps([split, used, refused]).encode())
        super().__init__(corpus, settings, corpus.name, {"images": content.hexdigest()})

    def texts(self, split: str) -> Iterator[Texts]:
        """The captions without their final full stop."""
        return ((FINAL_STOP.sub("", caption),) for image in self._used[split] for caption in image.captions)

    def image_of(self, split: str) -> NDArray[np.int64]:
        counts = [len(image.captions) for image in self._used[split]]
        return np.repeat(np.arange(len(counts)), counts)

    def image_digests(self, split: str) -> list[str]:
        return [str(self._digests[image.file]) for image in self._used[split] for _ in image.captions]

    def place(self, split: str, index: int) -> str:
        return str(self._used[split][self.image_of(split)[index]].file)

    def write_other_files(self, directory: Path, split: str) -> None:
        used = self._used[split]
        rows = [self._rows[image.file] for image in used]
        (directory / f"{split}.rows.bin").write_bytes(np.array(rows, OFFSET).tobytes())
        records = (
            {"identifier": image.identifier, "file": str(image.file), "captions": image.captions} for image in used
        )
        write_lines(directory / f"{split}.images.jsonl", map(json.dumps, records))

    def count_dropped(self, split: str) -> Counter[str]:
        return Counter({"of refused images": sum(len(image.captions) for image in self._refused[split])})

    def summary(self, directory: Path) -> dict[str, Any]:
        refused = ((split, self._reasons[image.file]) for split, images in self._refused.items() for image in images)
        write_lines(directory / REFUSED, (f"{split}\t{one_line(why)}" for split, why in refused))
        return {}

    def counted(self, split: str, examples: Iterator[tuple[Texts, str]]) -> Iterator[tuple[Texts, str]]:
        kept = set[int]()
        for image, (texts, reason) in zip(self.image_of(split).tolist(), examples, strict=True):
            if not reason:
                kept.add(image)
            yield texts, reason
        self._kept[split] = len(kept)

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        return {"images": self._kept[split], **counts, "refused": len(self._refused[split])}


# Making a store


def prepare_store(
    files: Sequence[Path], encoder: EncoderSettings, *, root: Path, processes: int | None, device: torch.device
) -> ImageStore:
    """Open the store of these images. It is made if it does not exist.

    files: the images; files with the same content share a row, and unreadable files are left out
    encoder: if it is frozen, its annotation vectors are stored as float16; if it is trained, its input pixels
    device: where the backbone computes, in this process

    Raises InputError for wrong settings of the encoder before images are read for a new store, if no image can be used,
    if an image changes meanwhile, or if the disk has too little space. The next call resumes interrupted work, unless
    bad input was the reason.
    """
    encoder.check()
    is_frozen = encoder.fine_tune_from is None
    name = f"images-{encoder.backbone.rpartition('/')[2]}" if is_frozen else "images-pixels"
    if is_frozen and not any(root.glob(f"{name}-*/{SUMMARY}")):
        check_default_weights(encoder)  # no store is complete, so the weights are needed
    file_digests = Digests(root / "digests.json")
    digests = file_digests.compute(files)
    file_by_digest = {digest: file for digest, file in zip(digests, files, strict=True) if digest is not None}
    inputs: dict[str, Any] = {"format": FORMAT, "images": sorted(file_by_digest), "pixels": [encoder.size, encoder.fit]}
    if is_frozen:
        inputs["backbone"] = backbone_fingerprint(encoder, file_digests)
    directory = directory_path(root, name, inputs)

    @file_digests.check_unchanged()
    def fill(unfinished: Path) -> dict[str, Any]:
        summary = _fill(unfinished, sorted(file_by_digest.items()), encoder, processes=processes, device=device)
        return {**summary, "inputs": {**inputs, "images": len(file_by_digest)}}

    if not files:
        raise InputError("No image of the data has captions.")
    if not file_by_digest:
        folder = next((folder for folder in files[0].parents if folder.is_dir()), None)
        advice = ""
        if folder is not None and not files[0].exists():
            images = images_in(folder)
            advice = f" {folder} has other images, such as {images[0]}." if images else f" {folder} has no images."
        raise InputError(f"None of the {len(files):,} images can be used; {unreadable_reason(files[0])}{advice}")
    make_once(directory, fill)
    store = ImageStore(directory, files, digests)
    store.mirror_unless = names(encoder.mirror_unless)
    return store


def _fill(
    directory: Path, images: Images, encoder: EncoderSettings, *, processes: int | None, device: torch.device
) -> dict[str, Any]:
    """Write all files of a store except its summary, which is returned.

    Resumes an interrupted preparation if it had the same weights and versions.
    """
    backbone = weights = None
    shape: tuple[int, ...] = (3, encoder.size, encoder.size)
    kind: np.dtype[Any] = np.dtype("u1")
    if encoder.fine_tune_from is None:
        backbone = make_backbone(encoder, pretrained=True).eval()
        with out_of_memory(lambda: MODEL_TOO_LARGE, device):
            backbone.to(device)
        weights = weights_digest(backbone)
        shape, kind = (math.prod(backbone.locations), backbone.dimension), np.dtype("<f2")
    else:  # so that a mistake in the encoder's settings is found before thousands of images are read
        with torch.random.fork_rng(devices=[]):
            make_backbone(encoder, pretrained=encoder.weights != "default")
    row_bytes = math.prod(shape) * kind.itemsize
    unfinished, provenance = Unfinished(directory), [weights, torch.__version__, PIL.__version__]
    progress = unfinished.progress.get("images", {})
    if progress.get("by") != provenance:
        progress = {"done": 0, "refused": {}}
        if unfinished.progress:  # before the rows are cut, or the old versions would resume without them
            unfinished.record(images={})
    done: int = progress["done"]
    refused: dict[str, str] = dict(progress["refused"])  # reasons by digest

    def written_bytes(progress: Mapping[str, Any]) -> int:
        """The bytes of the rows written so far."""
        return int(progress["done"] - len(progress["refused"])) * row_bytes

    if done:
        log.info("Resuming after %s of an interrupted preparation.", counted(done, "image"))
    total, free = len(images) * row_bytes, shutil.disk_usage(directory).free
    count = counted(len(images), "image")
    log.info("%s: %s bytes (%s) for %s", directory.with_suffix(""), f"{total:,}", size_text(total), count)
    needed = total - written_bytes(progress)
    if needed > free:
        raise UnfinishedError(
            f"The image store needs {size_text(needed)} and {directory.parent} has {size_text(free)} "
            "free: set data.cache to a directory on a larger disk."
        )
    chunks = load(images[done:], size=encoder.size, mode=encoder.fit, processes=processes)
    with (
        closing(chunks),
        (directory / VALUES).open("ab") as file,
        progress_bar(total=len(images), unit=" images", description="Images") as bar,
        unfinished.record_regularly("images", lambda progress: cut(file, written_bytes(progress))) as report_progress,
    ):
        cut(file, written_bytes(progress))
        bar.update(done)
        for chunk in chunks:
            if len(chunk.pixels):
                file.write(_make_rows(chunk.pixels, backbone, encoder, device).tobytes())
                file.flush()
            refused |= {images[done + index][0]: reason for index, reason in chunk.refused.items()}
            chunk_size = len(chunk.pixels) + len(chunk.refused)
            done += chunk_size
            bar.update(chunk_size)
            report_progress({"done": done, "refused": dict(refused), "by": provenance})
    usable_digests = [digest for digest, _ in images if digest not in refused]
    if not usable_digests:
        digest, path = images[0]
        raise InputError(f"None of the {len(images):,} images can be used; {path} {refused[digest]}")
    (directory / DIGESTS).write_text("".join(f"{digest}\n" for digest in usable_digests))
    return {
        "format": FORMAT,
        "shape": [len(usable_digests), *shape],
        "type": kind.str,
        "locations": None if backbone is None else list(backbone.locations),
        "dimension": None if backbone is None else backbone.dimension,
        "backbone": None if backbone is None else encoder.backbone,
        "layer": None if backbone is None else encoder.layer,
        "weights": weights,
        "fit": encoder.fit,
        "refused": refused,
        "versions": versions(torch=torch.__version__, pillow=PIL.__version__),
    }


def _make_rows(
    pixels: NDArray[np.uint8], backbone: nn.Module | None, encoder: EncoderSettings, device: torch.device
) -> NDArray[Any]:
    """Make the rows that are stored for these images: annotation vectors, or pixels if there is no backbone."""
    if backbone is None:
        return pixels
    with out_of_memory(lambda: IMAGES_TOO_LARGE, device), torch.inference_mode():
        annotations = backbone(torch.from_numpy(pixels).to(device))
        largest = float(annotations.abs().max())
        if not largest <= MAX_FLOAT16:  # also true for NaN
            layer = "the last layer" if encoder.layer is None else f"layer {encoder.layer}"
            raise InputError(
                f"The annotation vectors of {encoder.backbone}, {layer}, reach {largest:,.0f}, but float16 has at most "
                f"{MAX_FLOAT16:,.0f}: choose another model.encoder.layer."
            )
        values: NDArray[np.float16] = annotations.half().cpu().numpy()
    return values


def unreadable_reason(file: Path) -> str:
    """A sentence that says why a file has no digest."""
    try:
        open_image(file, name=str(file))
    except ImageError as error:
        return str(error)
    return f"{file} could not be read when its digest was computed."


def size_text(count: int) -> str:
    """A number of bytes in GB or MB, for messages."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
