"""Tests of the image store: it holds what the backbone gives, once for each image, and is complete or absent."""

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from seqtool.data import directories
from seqtool.data.directories import Digests
from seqtool.data.images import image_decoding, image_store
from seqtool.data.images.image_decoding import fit, open_image
from seqtool.data.images.image_store import ImageStore, is_store, prepare_store, weights_digest
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings, make_backbone
from seqtool.models.inputs import Annotations, Pixels
from seqtool.runtime import workers

CPU = torch.device("cpu")
FROZEN_ENCODER = EncoderSettings(
    backbone="small",
    layer=None,
    weights=None,
    size=64,
    fit="squash",
    fine_tune_from=None,
    lr=0.001,
    augment=False,
)
TRAINED_ENCODER = dataclasses.replace(FROZEN_ENCODER, fine_tune_from=0)


def draw_noise(path: Path, seed: int) -> Path:
    """Draw a small picture of noise, which depends on the seed."""
    values = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "album").mkdir()
    return [draw_noise(tmp_path / "album" / f"{seed}.png", seed) for seed in range(7)]


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., ImageStore]:
    def prepare_images(files: list[Path], encoder: EncoderSettings = FROZEN_ENCODER, **changes: Any) -> ImageStore:
        arguments: dict[str, Any] = {"root": tmp_path / "cache", "processes": 1, "device": CPU}
        return prepare_store(files, encoder, **arguments | changes)

    return prepare_images


Prepare = Callable[..., ImageStore]


def read_pixels(files: list[Path], mode: str = "squash", size: int = 64) -> NDArray[np.uint8]:
    """Return the pixels that a backbone reads of these images."""
    images = (open_image(file, name=str(file)) for file in files)
    return np.ascontiguousarray(np.stack([fit(image, size=size, mode=mode) for image in images]).transpose(0, 3, 1, 2))


def store_entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("*") if path.name != "digests.json")


def test_stored_vectors_are_rounded_outputs_of_the_backbone(prepare: Prepare, files: list[Path]) -> None:
    store = prepare(files)
    backbone = make_backbone(FROZEN_ENCODER, pretrained=True).eval()
    assert (
        len(store) == 7 and store.locations == backbone.locations and store.summary["dimension"] == backbone.dimension
    )
    source = store.source(store.rows)
    assert isinstance(source, Annotations) and source.values.dtype == torch.float16
    by_content = np.argsort(store.rows)  # the order in which the backbone read the images
    with torch.no_grad():
        live = backbone(torch.from_numpy(read_pixels([files[i] for i in by_content])))
        one_by_one = torch.cat([backbone(torch.from_numpy(read_pixels([file]))) for file in files])
    assert torch.equal(store.source(range(7)).values, live.half())
    # A convolution adds up in another order in batches of another size. The outputs differ by up to 3e-6 here, so that
    # about one value in 700 is rounded to the neighbouring number of float16.
    assert torch.allclose(source.values.float(), one_by_one, rtol=2**-10, atol=1e-5)
    assert (source.values != one_by_one.half()).float().mean() < 0.01


def test_pixels_are_stored_for_a_trained_backbone(prepare: Prepare, files: list[Path]) -> None:
    for mode in ("squash", "crop"):
        store = prepare(files, dataclasses.replace(TRAINED_ENCODER, fit=mode, size=32))
        source = store.source(store.rows[[4, 0, 4]])
        assert isinstance(source, Pixels) and store.locations is None and store.summary["dimension"] is None
        assert np.array_equal(source.values.numpy(), read_pixels([files[4], files[0], files[4]], mode, 32))
        assert store.describe() == f"pixels 32×32 ({mode}): 7 images, 0.0 MB"
        assert store.directory.name.startswith("images-pixels-")


def test_equal_images_share_a_row(prepare: Prepare, files: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    shutil.copy(files[2], copy)
    store = prepare([*files, copy, files[0]])
    assert len(store) == 7
    assert store.rows[7] == store.rows[2] and store.rows[8] == store.rows[0]
    assert (store.directory / "values.bin").stat().st_size == 7 * 64 * 96 * 2  # images, locations, dimensions and bytes


def test_content_and_backbone_decide_the_store(prepare: Prepare, files: list[Path], tmp_path: Path) -> None:
    first = prepare(files)
    assert first.directory.name.startswith("images-small-")
    assert first.describe() == "annotation vectors 8×8×96 (small): 7 images, 0.1 MB"
    renamed = [file.rename(tmp_path / f"moved-{file.name}") for file in files]
    again = prepare(renamed[::-1])
    assert again.directory == first.directory and again.rows.tolist() == first.rows[::-1].tolist()
    assert prepare(renamed, dataclasses.replace(FROZEN_ENCODER, lr=1.0)).directory == first.directory
    assert prepare(renamed, dataclasses.replace(FROZEN_ENCODER, fit="crop")).directory != first.directory
    faster = dataclasses.replace(TRAINED_ENCODER, lr=1.0)
    assert prepare(renamed, faster).directory == prepare(renamed, TRAINED_ENCODER).directory
    draw_noise(renamed[0], 99)
    assert prepare(renamed).directory != first.directory


def test_an_existing_store_is_not_made_again(
    prepare: Prepare, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(files)
    monkeypatch.setattr(image_store, "_fill", None)
    prepare(files)


def test_mistakes_in_a_trained_encoders_settings_are_found_before_pictures_are_read(
    prepare: Prepare, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pictures(*arguments: Any, **settings: Any) -> Any:
        raise AssertionError("pictures were read")

    before = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(image_store, "load", no_pictures)
        for changes, message in (
            ({"freeze": "layer.0"}, r"model\.encoder\.freeze takes modules"),
            ({"weights": str(files[0])}, str(files[0])),
        ):
            with pytest.raises(InputError, match=message):
                prepare(files, dataclasses.replace(TRAINED_ENCODER, **changes))
    prepare(files, TRAINED_ENCODER)
    assert torch.equal(torch.get_rng_state(), before)  # or the model's weights would depend on whether a store was made


def test_more_processes_change_nothing(prepare: Prepare, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_decoding, "CHUNK", 2)
    single_process = prepare(files)
    monkeypatch.setattr(image_decoding, "MIN_PARALLEL", 0)
    two_processes = prepare(files, processes=2, root=single_process.directory.parent / "other")
    assert torch.equal(single_process.source(range(7)).values, two_processes.source(range(7)).values)
    assert single_process.summary == two_processes.summary


def test_images_that_cannot_be_read_are_left_out(
    prepare: Prepare, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_decoding, "CHUNK", 3)
    empty, text, cut, missing = (tmp_path / name for name in ("empty.jpg", "text.jpg", "cut.png", "missing.jpg"))
    empty.touch()
    text.write_text("no image")
    cut.write_bytes(files[0].read_bytes()[:-700])
    store = prepare([empty, files[0], text, *files[1:], cut, missing, tmp_path])
    assert len(store) == 7 and np.flatnonzero(store.rows < 0).tolist() == [0, 2, 9, 10, 11]
    rows = store.rows[store.rows >= 0]
    clean = prepare(files)
    assert torch.allclose(store.source(rows).values, clean.source(clean.rows).values, rtol=2**-10, atol=1e-5)
    reasons = [store.refused[i] for i in (0, 2, 9, 10, 11)]
    assert reasons[0] == f"{empty} is empty."
    assert reasons[1].startswith(f"{text} is not an image of a known format")
    assert reasons[2].startswith(f"{cut} is a damaged image")
    assert reasons[3] == f"{missing} does not exist."
    assert reasons[4] == f"{tmp_path} is a directory, not an image."
    renamed = empty.rename(tmp_path / "new name.jpg")
    assert prepare([renamed, text, *files, cut]).refused[0] == f"{renamed} is empty."


@pytest.mark.parametrize("processes", [1, 2])
def test_temporary_failures_are_not_recorded(
    prepare: Prepare, files: list[Path], tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasons are recorded by an image's content, so a file that vanishes or changes ends the preparation."""
    damaged = draw_noise(tmp_path / "cut.png", 9)
    damaged.write_bytes(damaged.read_bytes()[:-700])
    content = files[3].read_bytes()
    events: list[Callable[[], object]] = [files[3].unlink, lambda: files[3].write_bytes(content[:-700])]
    messages = [
        f"{files[3]} can no longer be read (No such file or directory): prepare again once it can.",
        f"{files[3]} changed while it was read: prepare again.",
    ]
    monkeypatch.setattr(image_decoding, "MIN_PARALLEL", 0)
    for event, message in zip(events, messages, strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(image_store, "load", make_load_after(event))
            with pytest.raises(InputError) as error:
                prepare([damaged, *files], processes=processes)
        assert str(error.value) == message
        assert store_entries(tmp_path / "cache") == []
        files[3].write_bytes(content)
    store = prepare([damaged, *files])
    assert len(store) == 7 and list(store.refused) == [0]
    assert store.refused[0].startswith(f"{damaged} is a damaged image")


def make_load_after(event: Callable[[], object]) -> Any:
    """Return a function that loads images after an event."""

    def load_after_event(*arguments: Any, **settings: Any) -> Any:
        event()
        return image_decoding.load(*arguments, **settings)

    return load_after_event


def test_vectors_fit_only_the_backbone_that_made_them(prepare: Prepare, files: list[Path]) -> None:
    vector_store, pixel_store = prepare(files), prepare(files, TRAINED_ENCODER)
    backbone = make_backbone(FROZEN_ENCODER, pretrained=True)
    assert vector_store.fits(backbone) and pixel_store.fits(backbone)
    assert vector_store.fits(make_backbone(FROZEN_ENCODER, pretrained=False))
    for tensor in (backbone.network.place.bias, backbone.mean):
        before = tensor.detach().clone()
        with torch.no_grad():
            tensor[-1] += 1e-6 if tensor is not backbone.mean else 1e-4
        assert not vector_store.fits(backbone) and pixel_store.fits(backbone)
        with torch.no_grad():
            tensor.copy_(before)
        assert vector_store.fits(backbone)
    flat, square = (weights_digest(nn.ParameterDict({"a": torch.zeros(shape)})) for shape in ((4,), (2, 2)))
    assert flat != square != weights_digest(nn.ParameterDict({"b": torch.zeros(2, 2)}))


def test_a_store_without_images_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.png", tmp_path / "empty.png"
    empty.touch()
    with pytest.raises(InputError) as error:
        prepare([missing, missing])
    assert str(error.value) == (
        f"None of the 2 images can be used; {missing} does not exist. {tmp_path} has other images, such as empty.png."
    )
    with pytest.raises(InputError) as error:
        prepare([empty, missing])
    assert str(error.value) == f"None of the 1 images can be used; {empty} is empty."
    with pytest.raises(InputError, match=r"^No image of the data has captions"):
        prepare([])
    assert not (tmp_path / "cache").exists()


class ConstantBackbone(nn.Module):
    """A backbone whose vectors consist of one value."""

    locations, dimension, mean = (2, 3), 4, torch.zeros(3, 1, 1)

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.full((len(pixels), 6, 4), self.value)


@pytest.mark.parametrize(("layer", "layer_name"), [(None, "the last layer"), ("features.35", "layer features.35")])
def test_vectors_too_large_for_float16_are_refused(
    prepare: Prepare, files: list[Path], layer: str | None, layer_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = dataclasses.replace(FROZEN_ENCODER, layer=layer, backbone="torchvision/vgg19")
    monkeypatch.setattr(image_store, "backbone_fingerprint", lambda *_: {})
    for value in (65_505.0, float("inf"), float("nan")):
        monkeypatch.setattr(image_store, "make_backbone", lambda *_, value=value, **__: ConstantBackbone(value))
        with pytest.raises(InputError) as error:
            prepare(files, encoder)
        assert str(error.value) == (
            f"The annotation vectors of torchvision/vgg19, {layer_name}, reach {value:,.0f}, but float16 has at most "
            "65,504: choose another model.encoder.layer."
        )
    monkeypatch.setattr(image_store, "make_backbone", lambda *_, **__: ConstantBackbone(-65_504.0))
    store = prepare(files, encoder)
    assert store.describe().startswith("annotation vectors 2×3×4 (torchvision/vgg19")
    assert (store.source([0]).values == -65_504).all()


def test_disk_space_is_logged_and_checked_first(
    prepare: Prepare,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "seqtool")
    store = prepare(files)
    assert caplog.messages == [f"{store.directory}: 86,016 bytes (0.1 MB) for 7 images"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 2000))  # type: ignore[attr-defined]
    with pytest.raises(InputError) as error:
        prepare(files, TRAINED_ENCODER)
    assert str(error.value) == (
        f"The image store needs 0.1 MB and {tmp_path / 'cache'} has 0.0 MB free: "
        "set data.cache to a directory on a larger disk."
    )
    assert store_entries(tmp_path / "cache") == [store.directory.name]


def test_a_full_disk_leaves_no_files(
    prepare: Prepare, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_sync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_to_sync)
        with pytest.raises(OSError, match="No space left on device"):
            prepare(files)
    assert store_entries(tmp_path / "cache") == []
    prepare(files)


PREPARING_SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
from seqtool.data.images import image_decoding
from seqtool.data.images import image_store
from seqtool.models.backbone import EncoderSettings

image_decoding.CHUNK = 2
encode, calls = image_store._make_rows, []
def kill_or_wait(*arguments):
    calls.append(1)
    if sys.argv[1] == "kill" and len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "slow":
        print("working", flush=True)
        sys.stdin.readline()
    return encode(*arguments)
image_store._make_rows = kill_or_wait
encoder = EncoderSettings(
    backbone="small", layer=None, weights=None, size=64, fit="squash", fine_tune_from=None, lr=0.001, augment=False
)
files = [Path(name) for name in sys.argv[3:]]
image_store.prepare_store(files, encoder, root=Path(sys.argv[2]), processes=1, device=torch.device("cpu"))
"""


def test_a_partial_store_of_a_killed_process_is_not_used(prepare: Prepare, files: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "cache"
    command = [sys.executable, "-c", PREPARING_SCRIPT, "kill", str(root), *map(str, files)]
    assert subprocess.run(command, check=False).returncode == -9
    entries = store_entries(root)
    assert [name.rpartition(".")[2] for name in entries] == ["lock", "partial"]
    assert (root / entries[1] / "values.bin").exists() and not is_store(root / entries[1])
    store = prepare(files)
    assert len(store) == 7 and is_store(store.directory) and store_entries(root) == [store.directory.name]


def test_a_store_begun_again_with_other_versions_is_not_resumed_with_the_first(
    prepare: Prepare, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second preparation ends before its first record, when the rows of the first are gone."""
    monkeypatch.setattr(image_decoding, "CHUNK", 2)
    expected = prepare(files, root=tmp_path / "whole").source(range(7)).values
    make_rows, chunks = image_store._make_rows, iter([True, False, False, True, True, True, True])

    def stop_sometimes(*arguments: Any) -> Any:
        if next(chunks):
            return make_rows(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(image_store, "_make_rows", stop_sometimes)
    with pytest.raises(KeyboardInterrupt):
        prepare(files)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch, "__version__", "0.0")
        prepare(files)
    assert torch.equal(prepare(files).source(range(7)).values, expected)


def test_two_processes_make_one_store(
    prepare: Prepare,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [sys.executable, "-c", PREPARING_SCRIPT, "slow", str(tmp_path / "cache"), *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "working\n"
        monkeypatch.setattr(image_store, "_fill", None)  # the store is not made here
        monkeypatch.setattr(sys, "stderr", errors := ReleasingErrors(process.stdin))
        store = prepare(files)
    assert len(store) == 7 and store_entries(tmp_path / "cache") == [store.directory.name]
    assert f"Waiting for another process that is preparing {store.directory}." in errors.written


class ReleasingErrors:
    """A standard error that lets the other process continue when this one reports that it is waiting."""

    def __init__(self, release: Any) -> None:
        self.release = release
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)
        if text.startswith("Waiting"):
            self.release.write("\n" * 10)
            self.release.close()

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing, since nothing is buffered."""


def test_an_incomplete_store_is_refused(prepare: Prepare, files: list[Path], tmp_path: Path) -> None:
    directory = prepare(files).directory
    values = directory / "values.bin"
    values.write_bytes(values.read_bytes()[:-2])
    with pytest.raises(InputError) as error:
        prepare(files)
    assert str(error.value) == (f"{values} has 86,014 bytes instead of 86,016: remove {directory} and prepare again.")
    with pytest.raises(InputError) as error:
        ImageStore(tmp_path)
    assert str(error.value) == f"{tmp_path} is not an image store: seqtool prepare makes them."


def test_digests_are_remembered_until_size_or_time_change(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = time.time_ns() - 10**11
    for file in files[1:]:
        os.utime(file, ns=(old, old))
    memory = tmp_path / "digests.json"
    first = Digests(memory).compute([*files, tmp_path / "missing"])
    assert first[7] is None and len(set(first)) == 8
    read: list[str] = []
    digest = directories._read
    monkeypatch.setattr(directories, "_read", lambda name: read.append(name) or digest(name))
    digests = Digests(memory)
    assert digests.compute(files) == first[:7]
    assert read == [str(files[0])]  # the only file that is so new that it may change without a new time
    assert digests(files[3]) == first[3]  # single files use the same memory
    draw_noise(files[3], 50)
    assert Digests(memory).compute(files[3:4]) != first[3:4]


def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(InputError) as error:
        list(workers.in_order(os._exit, [1, 1], processes=2))
    assert str(error.value).startswith(
        "A process that prepared data ended before it had finished, possibly out of memory: set data.processes=1 "
    )
