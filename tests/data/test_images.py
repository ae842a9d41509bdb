"""Tests of image files: each is read as the picture that it shows, or refused with a message that names it."""

import io
import os
import pickle
import re
import socket
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from seqtool.cli import main as cli
from seqtool.data.images import image_decoding
from seqtool.data.images.finding import find_images
from seqtool.data.images.image_decoding import ImageError, fit, open_image, read_image
from seqtool.errors import InputError
from seqtool.runtime import network
from seqtool.runtime.network import DownloadError, download

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 128, 0), (0, 0, 255), (255, 255, 255)


def photograph(width: int = 64, height: int = 48) -> Image.Image:
    """Draw a smooth gradient, which JPEG preserves, from dark at the top left to bright at the bottom right."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return Image.fromarray((np.stack([x, y, (x + y) / 2], -1) * 255).astype(np.uint8))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decode(content: bytes, name: str = "it") -> Image.Image:
    return open_image(io.BytesIO(content), name=name)


def colours(image: Image.Image) -> list[tuple[int, ...]]:
    return [tuple(colour) for colour in np.asarray(image).reshape(-1, 3).tolist()]


def rgba_image() -> Image.Image:
    """Three pixels: opaque red, half-transparent blue and transparent green."""
    return Image.frombytes("RGBA", (3, 1), bytes([255, 0, 0, 255, 0, 0, 255, 128, 0, 128, 0, 0]))


def palette_png(**options: object) -> bytes:
    image = Image.frombytes("P", (3, 1), bytes([0, 1, 2]))
    image.putpalette([*RED, *GREEN, *BLUE])
    return encode(image, "PNG", **options)


def grey16_image() -> Image.Image:
    return Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16))


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def animated_gif() -> bytes:
    frames = [Image.new("RGB", (1, 1), colour) for colour in (RED, GREEN, BLUE)]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


BLENDED = (127, 127, 255)
READABLE_FILES = {
    "RGB": (encode(Image.new("RGB", (1, 1), GREEN), "PNG"), [GREEN]),
    "grey": (encode(Image.frombytes("L", (2, 1), bytes([0, 200])), "PNG"), [(0, 0, 0), (200, 200, 200)]),
    "grey JPEG": (encode(Image.new("L", (1, 1), 77), "JPEG"), [(77, 77, 77)]),
    "1 bit": (encode(Image.frombytes("1", (2, 1), b"\x40"), "PNG"), [(0, 0, 0), WHITE]),
    "RGBA": (encode(rgba_image(), "PNG"), [RED, BLENDED, WHITE]),
    "RGBA WebP": (encode(rgba_image(), "WEBP", lossless=True, exact=True), [RED, BLENDED, WHITE]),
    "grey, alpha": (encode(Image.frombytes("LA", (2, 1), bytes([9, 255, 9, 0])), "PNG"), [(9, 9, 9), WHITE]),
    "palette": (palette_png(), [RED, GREEN, BLUE]),
    "palette, one transparent": (palette_png(transparency=1), [RED, WHITE, BLUE]),
    "palette, alphas": (palette_png(transparency=b"\xff\x00\x80"), [RED, WHITE, BLENDED]),
    "RGB, one transparent": (encode(Image.new("RGB", (1, 1), RED), "PNG", transparency=RED), [WHITE]),
    "16 bits": (encode(grey16_image(), "PNG"), [(0, 0, 0), (100, 100, 100), WHITE]),
    "16 bits TIFF": (encode(grey16_image(), "TIFF"), [(0, 0, 0), (100, 100, 100), WHITE]),
    "16 bits RGB": (raw_png(1, 1, 16, 2, b"\0" + bytes([255, 255, 100, 100, 0, 0])), [(255, 100, 0)]),
    "16 bits PGM": (b"P5 2 1 65535\n" + bytes([0, 0, 255, 255]), [(0, 0, 0), WHITE]),
    "CMYK JPEG": (encode(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "JPEG"), [(254, 0, 0)]),
    "CMYK TIFF": (encode(Image.new("CMYK", (1, 1), (0, 0, 0, 0)), "TIFF"), [WHITE]),
    "animation": (animated_gif(), [RED]),
}


@pytest.mark.parametrize("kind", READABLE_FILES)
def test_pictures_of_every_kind_become_rgb(kind: str) -> None:
    content, expected = READABLE_FILES[kind]
    image = decode(content)
    assert image.mode == "RGB"
    assert np.abs(np.subtract(colours(image), expected)).max() <= (1 if "JPEG" in kind else 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(orientation: int, kind: str) -> None:
    upright = photograph()
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    stored = upright if orientation == 1 else upright.transpose(image_decoding.UPRIGHT[inverse])
    exif = Image.Exif()
    exif[image_decoding.ORIENTATION] = orientation
    image = decode(encode(stored, kind, exif=exif))
    assert image.size == upright.size
    assert np.abs(np.asarray(image).astype(int) - np.asarray(upright)).max() < 16


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0MM\0*\0\0\xff\xff"])
def test_unreadable_exif_data_are_ignored(exif: bytes) -> None:
    assert decode(encode(photograph(), "JPEG", exif=exif)).size == (64, 48)


def decompression_bomb(width: int, height: int) -> bytes:
    return raw_png(width, height, 8, 0, b"")


PHOTO_JPEG = encode(photograph(640, 480), "JPEG")
REFUSED_FILES = {
    "truncated JPEG": (PHOTO_JPEG[: len(PHOTO_JPEG) // 2], r"is a damaged image \(image file is truncated .*\)\."),
    "header alone": (PHOTO_JPEG[:30], r"is a damaged image \(.+\)\.|is not an image of a known format .*"),
    "truncated PNG": (encode(photograph(), "PNG")[:200], r"is a damaged image \(.+\)\."),
    "zero bytes": (b"", r"is empty\."),
    "text": (b"A dog is running.\n", r"is not an image of a known format \(JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM\)\."),
    "web page": (b"<!DOCTYPE html><html></html>", r"is not an image of a known format \(.*\)\."),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", r"is not an image of a known format \(.*\)\."),
    "floats": (encode(Image.new("F", (2, 2)), "TIFF"), r"is a damaged image \(its pixels are floating-point .*\)\."),
    "bomb": (decompression_bomb(10_001, 10_000), r"has more than 100 million pixels: make it smaller\."),
    "bigger bomb": (decompression_bomb(200_000, 200_000), r"has more than 100 million pixels: make it smaller\."),
}


@pytest.mark.parametrize("kind", REFUSED_FILES)
def test_refused_images_are_named(kind: str, tmp_path: Path) -> None:
    content, reason = REFUSED_FILES[kind]
    path = tmp_path / "photo (1).jpg"
    path.write_bytes(content)
    for attempt in (lambda: open_image(path, name="photo"), lambda: decode(content, "photo")):
        with pytest.raises(ImageError, match=f"^photo ({reason})$"):
            attempt()
    with pytest.raises(InputError) as error:
        read_image(str(path))
    assert str(error.value).startswith(f"{path} ")


def test_names_without_a_readable_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_bytes(PHOTO_JPEG)
    for name, reason in (
        ("missing.jpg", "does not exist."),
        ("a/b.jpg", "does not exist."),
        (".", "is a directory, not an image."),
        ("pipe", "is not a regular file."),
        ("x" * 300, "cannot be read (File name too long)."),
        ("\0", "is not the name of a file (embedded null byte)."),
    ):
        name = f"{tmp_path}/{name}"
        with pytest.raises(ImageError) as error:
            read_image(name)
        message = str(error.value).replace("stat: embedded null character in path", "embedded null byte")  # Python 3.13
        assert message == f"{name} {reason}"


def test_a_file_without_read_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(READABLE_FILES["RGB"][0])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ImageError, match=r"secret\.png cannot be read \(Permission denied\)\.$"):
        read_image(str(path))


def test_a_large_image_is_read_without_global_changes() -> None:
    """Pillow would warn of 90 million pixels; warnings are errors here. The image is made smaller as it is read."""
    previous_state = warnings.filters[:], Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    image = decode(raw_png(9_500, 9_500, 1, 0, bytes(9_500 * (9_500 // 8 + 2))))
    assert image.size == (3_167, 3_167)
    assert previous_state == (warnings.filters[:], Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_threads_can_read_images_at_once() -> None:
    """Pillow warns of each of these images; warnings are errors here, also in threads."""
    previous_filters = warnings.filters[:]
    corrupt_exif = encode(photograph(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0\x0f\x01\x02\0\xff\0\0\0")
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        Image.open(io.BytesIO(corrupt_exif)).getexif()
    with ThreadPoolExecutor(8) as pool:
        assert [image.size for image in pool.map(decode, [corrupt_exif] * 400)] == [(64, 48)] * 400
    assert warnings.filters[:] == previous_filters


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_damaged_images_are_read_or_refused(kind: str) -> None:
    intact = encode(photograph(24, 16), kind)
    generator = np.random.default_rng(0)
    for _ in range(300):
        content = np.frombuffer(intact, np.uint8)[: generator.integers(1, len(intact) + 1)].copy()
        positions = generator.integers(0, len(content), 4)
        content[positions] = generator.integers(0, 256, 4)
        try:
            assert decode(content.tobytes(), "photo").mode == "RGB"
        except ImageError as error:
            assert str(error).startswith("photo ") and str(error).endswith(".")


def test_an_image_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ImageError("a.jpg", "is empty.")))
    assert (str(error), error.name, error.reason) == ("a.jpg is empty.", "a.jpg", "is empty.")


def test_images_are_cropped_or_squashed() -> None:
    wide = Image.new("RGB", (400, 100), RED)
    wide.paste(BLUE, (150, 0, 250, 100))
    crop = fit(wide, size=32, mode="crop")
    assert crop.shape == (32, 32, 3) and crop.dtype == np.uint8 and crop.flags.writeable
    assert (crop[:, 1:-1] == BLUE).all()
    squashed = fit(wide, size=32, mode="squash")
    assert squashed.shape == (32, 32, 3)
    assert (squashed[:, :11] == RED).all() and (squashed[:, 13:19] == BLUE).all() and (squashed[:, 21:] == RED).all()
    square = photograph(32, 32)
    for mode in ("crop", "squash"):
        assert (fit(square, size=32, mode=mode) == np.asarray(square)).all()
        assert (fit(Image.new("RGB", (1, 1), GREEN), size=32, mode=mode) == GREEN).all()
        assert (fit(Image.new("RGB", (1, 3_000_000), GREEN), size=32, mode=mode) == GREEN).all()


def run(*arguments: str) -> int:
    return cli.run(list(arguments), cli.config_directory())


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which has a folder of photos."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.jpg", "a.PNG", "c [1].jpg", ".hidden.jpg", "notes.txt", "inner/d.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PHOTO_JPEG)
    (tmp_path / "photos" / "folder.jpg").mkdir()
    return tmp_path


def test_images_are_found_by_name_pattern_folder_and_list(workspace: Path) -> None:
    photos = ["photos/a.PNG", "photos/b.jpg", "photos/c [1].jpg"]
    assert find_images(["photos"]) == photos
    assert find_images(["photos/*"]) == photos
    assert find_images(["photos/**/*.jpg"]) == ["photos/b.jpg", "photos/c [1].jpg", "photos/inner/d.jpg"]
    assert find_images(["photos/[ab].*"]) == photos[:2]
    assert find_images(["photos/c [1].jpg"]) == ["photos/c [1].jpg"]
    names = ["https://example.org/a.jpg?x=*", "photos/b.jpg", "missing.jpg", "photos/b.jpg", "file:///etc/passwd"]
    assert find_images(names) == names
    (workspace / "list.txt").write_text("photos/b.jpg\r\n\n  photos/inner \nhttp://localhost/a b.jpg\nmissing.jpg")
    expected = ["photos/b.jpg", "photos/inner/d.jpg", "http://localhost/a b.jpg", "missing.jpg"]
    assert find_images(["photos/a.PNG", "list.txt"]) == ["photos/a.PNG", *expected]
    (workspace / "folder[1]").mkdir()
    (workspace / "folder[1]" / "e.gif").write_bytes(b"")
    assert find_images(["folder[1]"]) == ["folder[1]/e.gif"]


def test_files_of_a_folder_besides_images_are_counted(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes one line with counts, and names the setting that includes the images of its folders."""
    rows = [f'{{"file": "{name}", "captions": ["a photo"]}}' for name in ("b.jpg", "c [1].jpg", "inner/d.jpg")]
    (workspace / "captions.jsonl").write_text("\n".join(rows))
    for name in ("one.heic", "two.HEIC", "film.mov", "README"):
        (workspace / "photos" / name).touch()
    data = ["data=photos", "data.directory=photos", "data.train=captions.jsonl", "data.valid_share=0.4"]
    sizes = ["data.vocabulary.minimum_count=1", "data.processes=1", "model.embedding=8", "model.hidden=8"]
    limits = ["device=cpu", "train.minutes=null", "train.steps=1", "validation.max_length=3", "run=r"]
    assert run("train", "model=show_tell", *data, "data.test_share=0", *sizes, *limits) == 0
    capsys.readouterr()
    caption = ["caption", "checkpoint=runs/r", "images=photos", "device=cpu"]

    assert run(*caption) == 0
    output = capsys.readouterr()
    photos = ["photos/a.PNG", "photos/b.jpg", "photos/c [1].jpg"]
    assert [line.split("\t")[0] for line in output.out.splitlines()] == photos
    other_files = "5 of other kinds (2 .heic, 1 .mov, 1 .txt, 1 without a suffix)"
    suffixes = ".bmp, .gif, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp"
    left_out = f"left out: 2 folders (recursive=true takes their images) and {other_files}."
    (line,) = [line for line in output.err.splitlines() if "left out" in line]
    assert line == f"photos: 3 images ({suffixes}); {left_out}"

    assert run(*caption, "recursive=true") == 0
    output = capsys.readouterr()
    assert [line.split("\t")[0] for line in output.out.splitlines()] == [*photos, "photos/inner/d.jpg"]
    assert "photos: 4 images" in output.err and "folders" not in output.err

    assert run(*caption, "recursive=maybe") == 2
    assert "Setting 'recursive' must be true or false" in capsys.readouterr().err


def test_the_contents_of_a_folder_without_images_are_counted(workspace: Path) -> None:
    (workspace / "albums" / "one").mkdir(parents=True)
    (workspace / "albums" / "one" / "a.jpg").write_bytes(PHOTO_JPEG)
    (workspace / "albums" / "film.mov").touch()
    with pytest.raises(InputError) as error:
        find_images(["albums"])
    contents = "it has 1 folder (recursive=true takes their images) and 1 of other kinds (1 .mov)."
    assert str(error.value).startswith("albums is a folder without images (") and str(error.value).endswith(contents)
    assert find_images(["albums"], recursive=True) == ["albums/one/a.jpg"]
    (workspace / "phone").mkdir()
    (workspace / "phone" / "a.HEIC").touch()
    with pytest.raises(InputError, match=r"it has 1 of other kinds \(1 \.heic\): convert them to JPEG\.$"):
        find_images(["phone"])


def test_names_without_images_are_refused(workspace: Path) -> None:
    suffixes = "(.bmp, .gif, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp)"
    (workspace / "empty").mkdir()
    (workspace / "blank.txt").write_text("\n \n")
    (workspace / "outer.txt").write_text("photos/a.PNG\nblank.txt\n")
    (workspace / "wrong.txt").write_text("photos/a.PNG\nphotos/*.gif\n")
    for name, message in (
        ("empty", f"empty is a folder without images {suffixes}."),
        ("photos/*.gif", f"photos/*.gif matches no image {suffixes}."),
        ("blank.txt", "blank.txt names no images: write one name on each line."),
        ("outer.txt", "outer.txt line 2: blank.txt is a list: a list of images cannot name another list."),
        ("wrong.txt", f"wrong.txt line 2: photos/*.gif matches no image {suffixes}."),
        ("", "The name of an image is empty: write the name of a file, folder or list."),
    ):
        with pytest.raises(InputError) as error:
            find_images([name])
        assert str(error.value) == message


class Handler(BaseHTTPRequestHandler):
    """A server that answers well or badly, depending on the requested path."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/photo.jpg", "/K%C3%B6ln%201.jpg"):
            self.answer(200, PHOTO_JPEG)
        elif path == "/empty":
            self.answer(200, b"")
        elif path == "/long":
            self.answer(200, bytes(2_000))
        elif path == "/undeclared":
            self.answer(200, bytes(2_000), declare=False)
        elif path == "/partial":
            self.answer(206, PHOTO_JPEG)
        elif path == "/short":
            self.answer(200, PHOTO_JPEG[:3_000], declare=len(PHOTO_JPEG))
        elif path == "/nonsense":
            self.wfile.write(b"nonsense\r\n\r\n")
        elif path.startswith("/to/"):
            self.answer(302, b"", location=path.removeprefix("/to/"))
        elif path == "/loop":
            self.answer(301, b"", location="/loop")
        elif path.startswith("/down/"):
            steps = int(path.removeprefix("/down/"))
            self.answer(307, b"", location=f"/down/{steps - 1}" if steps else "/photo.jpg")
        elif path in ("/trickle", "/headers"):
            self.trickle(path)
        else:
            self.answer(404, b"nothing here")

    def answer(self, status: int, content: bytes, *, declare: bool | int = True, location: str | None = None) -> None:
        self.send_response(status)
        if location is not None:
            self.send_header("Location", location)
        if declare:
            self.send_header("Content-Length", str(len(content) if declare is True else declare))
        self.end_headers()
        self.wfile.write(content)

    def trickle(self, path: str) -> None:
        try:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n" + (b"\r\n" if path == "/trickle" else b"X-Header: "))
            while True:
                self.wfile.write(b"x")
                time.sleep(0.02)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_images_are_read_from_the_web(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # not used for addresses of this machine
    for path in ("photo.jpg", "Köln 1.jpg", "K%C3%B6ln%201.jpg?a=b#c", "to/../photo.jpg", "to//photo.jpg", "down/4"):
        assert read_image(f"{server}/{path}").size == (640, 480)
    assert read_image(f"HTTP{server[4:]}/photo.jpg").size == (640, 480)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.jpg", "answers with status 404 (Not Found)."),
        ("partial", "answers with status 206 (Partial Content)."),
        ("to/file:///etc/passwd", "redirects to file:///etc/passwd: only http and https addresses are read."),
        ("to/ftp://localhost/a", "redirects to ftp://localhost/a: only http and https addresses are read."),
        ("loop", "redirects more than 5 times."),
        ("down/5", "redirects more than 5 times."),
        ("empty", "is empty."),
        ("long", "is not an image of a known format (JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM)."),
        ("nonsense", "cannot be read (nonsense)."),
    ],
)
def test_addresses_without_an_image_are_refused(server: str, path: str, reason: str) -> None:
    with pytest.raises(ImageError) as error:
        read_image(f"{server}/{path}")
    assert str(error.value) == f"{server}/{path} {reason}"


def test_an_answer_that_ends_early_is_reported(server: str) -> None:
    with pytest.raises(ImageError, match=r"/short ended after [\d,]+ of [\d,]+ bytes\.$"):
        read_image(f"{server}/short")


@pytest.mark.parametrize("path", ["long", "undeclared"])
def test_answers_that_are_too_long_are_refused(server: str, path: str) -> None:
    assert len(download(f"{server}/{path}", maximum=2_000)) == 2_000
    with pytest.raises(DownloadError, match=r"^has more than 0\.001999 MB\.$"):
        download(f"{server}/{path}", maximum=1_999)


@pytest.mark.parametrize("path", ["trickle", "headers"])
def test_answers_that_never_end_time_out(server: str, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(ImageError) as error:
        read_image(f"{server}/{path}", seconds=0.3)
    assert str(error.value) == f"{server}/{path} timed out after 0.3 seconds."
    assert time.monotonic() - start < 2
    if path == "trickle":  # a thread that waits for headers ends only with the server
        assert becomes_true(lambda: not [thread for thread in threading.enumerate() if thread.name == "download"])


def test_servers_that_do_not_answer_are_reported() -> None:
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/a.jpg"
        with pytest.raises(ImageError) as error:
            read_image(address)
        assert str(error.value) == f"{address} does not answer (Connection refused)."
        silent.listen()
        with pytest.raises(ImageError) as error:
            read_image(address, seconds=0.2)
        assert str(error.value) == f"{address} timed out after 0.2 seconds."


def test_looking_up_a_name_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_follow", lambda *_: time.sleep(1))
    with pytest.raises(DownloadError, match=r"^timed out after 0\.1 seconds\.$"):
        download("http://example.org", seconds=0.1)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("file:///etc/passwd", r"cannot be read: an address must begin with http:// or https://\."),
        ("ftp://localhost/a.jpg", r"cannot be read: an address must begin with http:// or https://\."),
        ("http://", r"does not answer \(no host given\)\."),
        ("http://localhost:port/a.jpg", r"cannot be read \(nonnumeric port: 'port'\)\."),
        ("http://[::1/a.jpg", r"cannot be read \(Invalid IPv6 URL\)\."),
        ("http://é" + "x" * 80 + "/a.jpg", r"cannot be read \(.*label.*\)\."),
    ],
)
def test_invalid_addresses_are_refused(address: str, reason: str) -> None:
    with pytest.raises(ImageError) as error:
        read_image(address)
    assert error.value.name == address
    assert re.fullmatch(reason, error.value.reason)


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within five seconds."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
