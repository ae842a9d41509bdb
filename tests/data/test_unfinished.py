"""Preparations that end early go on from where they were; inputs that change meanwhile leave no cache."""

import contextlib
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

PAIRS, CHUNK = 20_500, 10_000  # of text; and how many are encoded together
IMAGES, BATCH = 150, 64  # and how many go through the CNN together
TEXT = [
    *("prepare", "data=parallel", "data.train=train.tsv.gz", "data.valid=valid.tsv", "data.processes=1"),
    *("data.vocabulary.kind=word", "data.vocabulary.minimum_count=1"),
]
PHOTOS = [
    *("prepare", "model=show_tell", "data=photos", "data.directory=photos", "data.train=captions.jsonl"),
    *("data.processes=1", "data.vocabulary.minimum_count=1", "device=cpu", "threads=1"),
    *("model.encoder.size=16", "model.encoder.fine_tune_from=null", "model.encoder.augment=false"),
]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_text(*, word: str = "c") -> None:
    lines = [f"a {number % 97} b\tb {number % 97} {word}" for number in range(PAIRS)]
    Path("train.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1, mtime=0))
    Path("valid.tsv").write_text("a 1 b\tb 1 c\n")


def draw(number: int, *, seed: int = 0) -> None:
    generator = np.random.default_rng([seed, number])
    Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(f"photos/{number}.png")


def draw_others() -> None:
    for number in range(1, IMAGES):
        draw(number, seed=1)


def write_photos(*, caption: str = "a picture of noise") -> None:
    Path("photos").mkdir(exist_ok=True)
    for number in range(IMAGES):
        draw(number)
    Path("photos", "0.png").write_bytes(b"none")  # one that is refused
    rows = [json.dumps({"file": f"{number}.png", "captions": [caption]}) for number in range(IMAGES)]
    Path("captions.jsonl").write_text("\n".join(rows))


class Reading:
    """Calls a function once, when so many lines were read of a .gz file after this one began to be encoded."""

    def __init__(self, file: gzip.GzipFile, act: Callable[[], None], lines: int) -> None:
        self.file, self.act, self.lines = file, act, lines

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def readline(self, size: int) -> bytes:
        if list(Path("cache").glob("*.partial/train.source.tokens.bin")):
            self.lines -= 1
            if self.lines == 0:
                self.act()
        return self.file.readline(size)


def while_encoding(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, lines: int) -> None:
    opened = gzip.open
    monkeypatch.setattr(gzip, "open", lambda path: Reading(opened(path), act, lines))  # type: ignore[arg-type]


def while_decoding(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, images: int) -> None:
    """Before this many images are decoded."""
    decode, count = Image.open, iter(range(1, 10_000))

    def counted(*arguments: Any, **settings: Any) -> Image.Image:
        if next(count) == images:
            act()
        return decode(*arguments, **settings)

    monkeypatch.setattr(Image, "open", counted)


def content() -> dict[str, bytes]:
    """Of every file of every cache, by its cache's name and its own."""
    return {str(path): path.read_bytes() for path in Path("cache").rglob("*") if path.is_file() and path.name != MEMORY}


MEMORY = "digests.json"


def left() -> list[str]:
    return sorted(path.name for path in Path("cache").iterdir() if path.name != MEMORY)


def ends_with(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


ENDS = [KeyboardInterrupt(), MemoryError()]


def ended(*arguments: str) -> None:
    """The command line, however it ends."""
    with contextlib.suppress(MemoryError):
        assert run(*arguments) != 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The caches as they are where nothing ends early."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        write_text()
        write_photos()
        assert run(*TEXT) == run(*PHOTOS) == 0
        return content()


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_preparing_goes_on_from_where_it_was(
    place: Path,
    whole: dict[str, bytes],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_text()
    write_photos()
    with monkeypatch.context() as patch:
        while_encoding(patch, ends_with(error), lines=CHUNK + 5_000)
        while_decoding(patch, ends_with(error), images=BATCH + 40)
        ended(*TEXT)
        ended(*PHOTOS)
    assert caplog.messages.count("What has been prepared is kept: run the same command to resume.") == 2
    assert [name.rpartition(".")[2] for name in left()] == ["partial"] * 2
    goes_on(whole, caplog)


def goes_on(whole: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    assert run(*TEXT) == run(*PHOTOS) == 0
    end = "of an interrupted preparation."
    assert f"Resuming after {CHUNK:,} training pairs {end}" in caplog.messages
    assert f"Resuming after {BATCH:,} images {end}" in caplog.messages
    assert content() == whole


SIGNALLED = """
import os, signal, sys
from pathlib import Path
import pytest
from test_unfinished import BATCH, CHUNK, PHOTOS, TEXT, while_decoding, while_encoding
from seqtool.cli.main import main

what, patch = sys.argv[1], pytest.MonkeyPatch()
act = lambda: os.kill(os.getpid(), signal.SIGTERM)
while_encoding(patch, act, lines=CHUNK + 5_000)
while_decoding(patch, act, images=BATCH + 40)
sys.argv = ["seqtool", *(TEXT if what == "text" else PHOTOS)]
main()
"""


def test_a_signal_takes_nothing_away(place: Path, whole: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    """SIGTERM, as a cluster sends it before it kills."""
    write_text()
    write_photos()
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(cli.__file__).parents[2])])
    for what in ("text", "photos"):
        command = [sys.executable, "-c", SIGNALLED, what]
        result = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
        assert result.returncode == 128 + signal.SIGTERM, result.stderr
    goes_on(whole, caplog)


def test_bad_input_leaves_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text()
    lines = gzip.decompress(Path("train.tsv.gz").read_bytes())
    Path("train.tsv.gz").write_bytes(gzip.compress(lines + b"\nno tab\n"))
    assert run(*TEXT) == 2
    assert f"train.tsv.gz line {PAIRS + 1:,} has 0 tabs" in capsys.readouterr().err
    assert left() == []


def test_text_that_changes_while_it_is_read_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text()
    with monkeypatch.context() as patch:
        while_encoding(patch, lambda: write_text(word="d"), lines=15_000)
        assert run(*TEXT) == 2
    sentence = "seqtool: train.tsv.gz changed while it was read: prepare again."
    assert capsys.readouterr().err.splitlines()[-1] == sentence
    assert left() == []
    assert run(*TEXT) == 0


def test_text_that_is_replaced_by_other_text_of_its_size_and_time_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text()
    train = Path("train.tsv.gz")
    before = train.stat()

    def replace() -> None:
        Path("other").write_bytes(train.read_bytes())
        os.utime("other", ns=(before.st_atime_ns, before.st_mtime_ns))
        Path("other").rename(train)

    while_encoding(monkeypatch, replace, lines=15_000)
    assert run(*TEXT) == 2
    assert "train.tsv.gz changed while it was read: prepare again." in capsys.readouterr().err
    assert left() == []


def test_an_image_that_changes_while_images_are_read_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever is decoded last, it is another than the one that was looked at first."""
    write_photos()
    with monkeypatch.context() as patch:
        while_decoding(patch, draw_others, images=20)
        assert run(*PHOTOS) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("seqtool: photos/") and last.endswith(".png changed while it was read: prepare again.")
    assert left() == []
    assert run(*PHOTOS) == 0


def test_captions_that_change_while_images_are_read_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos()
    with monkeypatch.context() as patch:
        while_decoding(patch, lambda: write_photos(caption="another caption"), images=20)
        assert run(*PHOTOS) == 2
    sentence = "seqtool: captions.jsonl changed while it was read: prepare again."
    assert capsys.readouterr().err.splitlines()[-1] == sentence
    assert [name for name in left() if name.startswith("photos")] == []
    assert run(*PHOTOS) == 0
    (images,) = Path("cache").glob("*/train.images.jsonl")
    assert {tuple(json.loads(line)["captions"]) for line in images.read_text().splitlines()} == {("another caption",)}


def test_a_file_from_the_future_is_not_hashed_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is remembered as any other, once it is not the present."""
    write_text()
    write_photos()
    for path in (*Path().glob("*.*"), *Path("photos").iterdir()):
        os.utime(path, (time.time() + 3600,) * 2)
    assert run(*TEXT) == run(*PHOTOS) == 0
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: hashed.append(file.name) or digest(file, kind))
    assert run(*TEXT) == run(*PHOTOS) == 0
    assert hashed == []


def test_progress_is_said_where_standard_error_is_a_log_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text()
    write_photos()
    assert run(*TEXT) == run(*PHOTOS) == 0
    said = capsys.readouterr().err
    assert "Encoding: 100%" in said and "Reading: 100%" in said and "Images: 100%" in said
    assert len([line for line in said.replace("\r", "\n").splitlines() if "%" in line]) <= 8  # two a bar
