"""Tests of unfinished preparations: they are resumed, and inputs that change meanwhile leave no cache."""

import contextlib
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seqtool.cli import main as cli
from seqtool.data import preparation
from seqtool.runtime.files import config_directory

PAIRS, CHUNK = 2_050, 1_000  # training pairs; pairs that are encoded together
IMAGES, BATCH = 150, 64  # training images; images that go through the CNN together
DIGESTS_FILE = "digests.json"
TEXT_COMMAND = [
    *("prepare", "data=parallel", "data.train=train.tsv.gz", "data.valid=valid.tsv", "data.processes=1"),
    *("data.vocabulary.kind=word", "data.vocabulary.minimum_count=1"),
]
PHOTOS_COMMAND = [
    *("prepare", "model=show_tell", "data=photos", "data.directory=photos", "data.train=captions.jsonl"),
    *("data.processes=1", "data.vocabulary.minimum_count=1", "device=cpu", "threads=1"),
    *("model.encoder.size=16", "model.encoder.fine_tune_from=null", "model.encoder.augment=false"),
]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Encode fewer pairs together, so that a small corpus has several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "CHUNK", CHUNK)
        yield


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_text(*, word: str = "c") -> None:
    lines = [f"a {number % 97} b\tb {number % 97} {word}" for number in range(PAIRS)]
    Path("train.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1, mtime=0))
    Path("valid.tsv").write_text("a 1 b\tb 1 c\n")


def draw_noise(number: int, *, seed: int = 0) -> None:
    generator = np.random.default_rng([seed, number])
    Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(f"photos/{number}.png")


def redraw_images() -> None:
    for number in range(1, IMAGES):
        draw_noise(number, seed=1)


def write_photos(*, caption: str = "a picture of noise") -> None:
    Path("photos").mkdir(exist_ok=True)
    for number in range(IMAGES):
        draw_noise(number)
    Path("photos", "0.png").write_bytes(b"none")  # an image that is refused
    rows = [json.dumps({"file": f"{number}.png", "captions": [caption]}) for number in range(IMAGES)]
    Path("captions.jsonl").write_text("\n".join(rows))


class ActingFile:
    """A .gz file that calls a function once, when `lines` lines have been read after encoding has begun."""

    def __init__(self, file: gzip.GzipFile, act: Callable[[], None], lines: int) -> None:
        self.file, self.act, self.lines = file, act, lines

    def __enter__(self) -> "ActingFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def readline(self, size: int) -> bytes:
        if list(Path("cache").glob("*.partial/train.source.tokens.bin")):
            self.lines -= 1
            if self.lines == 0:
                self.act()
        return self.file.readline(size)


def act_while_encoding(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, lines: int) -> None:
    """Call `act` when `lines` lines of a .gz file have been read after encoding has begun."""
    open_gzip = gzip.open
    monkeypatch.setattr(gzip, "open", lambda path: ActingFile(open_gzip(path), act, lines))  # type: ignore[arg-type]


def act_while_decoding(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, images: int) -> None:
    """Call `act` just before image number `images` is decoded."""
    decode, count = Image.open, iter(range(1, 10_000))

    def open_and_count(*arguments: Any, **settings: Any) -> Image.Image:
        if next(count) == images:
            act()
        return decode(*arguments, **settings)

    monkeypatch.setattr(Image, "open", open_and_count)


def cache_contents() -> dict[str, bytes]:
    """Return the content of each file of all caches, by path."""
    files = [path for path in Path("cache").rglob("*") if path.is_file() and path.name != DIGESTS_FILE]
    return {str(path): path.read_bytes() for path in files}


def cache_entries() -> list[str]:
    return sorted(path.name for path in Path("cache").glob("*") if path.name != DIGESTS_FILE)


def make_raising(error: BaseException) -> Callable[[], None]:
    def raise_error() -> None:
        raise error

    return raise_error


INTERRUPTIONS = [KeyboardInterrupt(), MemoryError()]


def run_until_error(*arguments: str) -> None:
    """Run a command that fails or raises MemoryError."""
    with contextlib.suppress(MemoryError):
        assert run(*arguments) != 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of caches whose preparation was not interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        write_text()
        write_photos()
        assert run(*TEXT_COMMAND) == run(*PHOTOS_COMMAND) == 0
        return cache_contents()


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=lambda error: type(error).__name__)
def test_an_interrupted_preparation_is_resumed(
    workspace: Path,
    uninterrupted: dict[str, bytes],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_text()
    write_photos()
    with monkeypatch.context() as patch:
        act_while_encoding(patch, make_raising(error), lines=CHUNK + 500)
        act_while_decoding(patch, make_raising(error), images=BATCH + 40)
        run_until_error(*TEXT_COMMAND)
        run_until_error(*PHOTOS_COMMAND)
    assert caplog.messages.count("What has been prepared is kept: run the same command to resume.") == 2
    assert [name.rpartition(".")[2] for name in cache_entries()] == ["partial"] * 2
    assert_resumed(uninterrupted, caplog)


def assert_resumed(uninterrupted: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    assert run(*TEXT_COMMAND) == run(*PHOTOS_COMMAND) == 0
    end = "of an interrupted preparation."
    assert f"Resuming after {CHUNK:,} training pairs {end}" in caplog.messages
    assert f"Resuming after {BATCH:,} images {end}" in caplog.messages
    assert cache_contents() == uninterrupted


SIGNALLED_SCRIPT = """
import os, signal, sys
from pathlib import Path
import pytest
from test_unfinished import BATCH, CHUNK, PHOTOS_COMMAND, TEXT_COMMAND, act_while_decoding, act_while_encoding
from seqtool.cli.main import main
from seqtool.data import preparation

preparation.CHUNK = CHUNK
kind, patch = sys.argv[1], pytest.MonkeyPatch()
act = lambda: os.kill(os.getpid(), signal.SIGTERM)
act_while_encoding(patch, act, lines=CHUNK + 500)
act_while_decoding(patch, act, images=BATCH + 40)
sys.argv = ["seqtool", *(TEXT_COMMAND if kind == "text" else PHOTOS_COMMAND)]
main()
"""


def test_a_signal_loses_no_progress(
    workspace: Path, uninterrupted: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Clusters send SIGTERM before they kill a process."""
    write_text()
    write_photos()
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(cli.__file__).parents[2])])
    for kind in ("text", "photos"):
        command = [sys.executable, "-c", SIGNALLED_SCRIPT, kind]
        result = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
        assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert_resumed(uninterrupted, caplog)


def test_bad_input_leaves_no_cache(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text()
    lines = gzip.decompress(Path("train.tsv.gz").read_bytes())
    Path("train.tsv.gz").write_bytes(gzip.compress(lines + b"\nno tab\n"))
    assert run(*TEXT_COMMAND) == 2
    assert f"train.tsv.gz line {PAIRS + 1:,} has 0 tabs" in capsys.readouterr().err
    assert cache_entries() == []


def test_text_that_changes_while_it_is_read_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text()
    with monkeypatch.context() as patch:
        act_while_encoding(patch, lambda: write_text(word="d"), lines=1_500)
        assert run(*TEXT_COMMAND) == 2
    message = "seqtool: train.tsv.gz changed while it was read: prepare again."
    assert capsys.readouterr().err.splitlines()[-1] == message
    assert cache_entries() == []
    assert run(*TEXT_COMMAND) == 0


def test_text_replaced_by_a_file_of_equal_size_and_time_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text()
    train = Path("train.tsv.gz")
    status = train.stat()

    def replace() -> None:
        Path("other").write_bytes(train.read_bytes())
        os.utime("other", ns=(status.st_atime_ns, status.st_mtime_ns))
        Path("other").rename(train)

    act_while_encoding(monkeypatch, replace, lines=1_500)
    assert run(*TEXT_COMMAND) == 2
    assert "train.tsv.gz changed while it was read: prepare again." in capsys.readouterr().err
    assert cache_entries() == []


def test_an_image_that_changes_while_images_are_read_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All good images are redrawn before the twentieth is decoded, so the last one differs from its first digest."""
    write_photos()
    with monkeypatch.context() as patch:
        act_while_decoding(patch, redraw_images, images=20)
        assert run(*PHOTOS_COMMAND) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("seqtool: photos/") and last.endswith(".png changed while it was read: prepare again.")
    assert cache_entries() == []
    assert run(*PHOTOS_COMMAND) == 0


def test_captions_that_change_while_images_are_read_are_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos()
    with monkeypatch.context() as patch:
        act_while_decoding(patch, lambda: write_photos(caption="another caption"), images=20)
        assert run(*PHOTOS_COMMAND) == 2
    message = "seqtool: captions.jsonl changed while it was read: prepare again."
    assert capsys.readouterr().err.splitlines()[-1] == message
    assert [name for name in cache_entries() if name.startswith("photos")] == []
    assert run(*PHOTOS_COMMAND) == 0
    (images,) = Path("cache").glob("*/train.images.jsonl")
    assert {tuple(json.loads(line)["captions"]) for line in images.read_text().splitlines()} == {("another caption",)}


def test_a_file_from_the_future_is_not_hashed_again(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time in the future is remembered like any other time that is not the present."""
    write_text()
    write_photos()
    for path in (*Path().glob("*.*"), *Path("photos").iterdir()):
        os.utime(path, (time.time() + 3600,) * 2)
    assert run(*TEXT_COMMAND) == run(*PHOTOS_COMMAND) == 0
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: hashed.append(file.name) or digest(file, kind))
    assert run(*TEXT_COMMAND) == run(*PHOTOS_COMMAND) == 0
    assert hashed == []


def test_progress_is_reported_in_log_files(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text()
    write_photos()
    assert run(*TEXT_COMMAND) == run(*PHOTOS_COMMAND) == 0
    output = capsys.readouterr().err
    assert "Encoding: 100%" in output and "Reading: 100%" in output and "Images: 100%" in output
    progress_lines = [line for line in output.replace("\r", "\n").splitlines() if "%" in line]
    assert len(progress_lines) <= 8  # two for each bar
