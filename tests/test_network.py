"""Downloads of files: whole and checked or not there, resumed where the server allows it; and those of libraries."""

import hashlib
import socket
from contextlib import closing
from pathlib import Path

import pytest
from serving import serving

from seqtool.errors import InputError
from seqtool.runtime import network
from seqtool.runtime.network import LibraryDownload, download_file

CONTENT = bytes(range(256)) * 400
KNOWN = len(CONTENT), hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    directory = tmp_path / "published"
    directory.mkdir()
    (directory / "a.gz").write_bytes(CONTENT)
    return directory


def test_a_file_is_downloaded_whole(published: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.gz"
    with serving(published) as server:
        download_file(f"{server.address}a.gz", path, *KNOWN)
    assert path.read_bytes() == CONTENT and server.ranges == [None]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("takes_ranges", [True, False])
def test_an_interrupted_download_is_resumed(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_ranges: bool
) -> None:
    """With what has arrived, or from the beginning if the server sends the whole file again."""
    path, partial = tmp_path / "a.gz", tmp_path / "a.gz.partial"
    with serving(published, takes_ranges=takes_ranges) as server:
        address = f"{server.address}a.gz"
        server.stall_after = 1_000
        with monkeypatch.context() as patch, pytest.raises(InputError) as error:
            patch.setattr(network, "FILE_TIMEOUT_SECONDS", 0.3)
            download_file(address, path, *KNOWN)
        assert str(error.value) == f"{address} timed out after 0.3 seconds: put a.gz into {tmp_path} by hand."
        assert partial.read_bytes() == CONTENT[:1_000] and not path.exists()
        server.stall_after = None
        download_file(address, path, *KNOWN)
        assert server.ranges == [None, "bytes=1000-"]
    assert path.read_bytes() == CONTENT and not partial.exists()


@pytest.mark.parametrize("left", [b"x" * 1_000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 1)])
def test_a_wrong_beginning_is_not_kept(published: Path, tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "a.gz"
    (tmp_path / "a.gz.partial").write_bytes(left)
    with serving(published) as server:
        address = f"{server.address}a.gz"
        if len(left) < len(CONTENT):
            with pytest.raises(InputError, match=r"/a\.gz is not the expected file: its SHA-256 is"):
                download_file(address, path, *KNOWN)
        download_file(address, path, *KNOWN)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (CONTENT[:-1], "is not the expected file: it has 102,399 bytes instead of 102,400."),
        (CONTENT + b"x", "has more than 0.1024 MB: put a.gz into {} by hand."),
        (None, "answers with status 404 (Not Found): put a.gz into {} by hand."),
    ],
)
def test_files_that_are_not_the_published_ones(
    published: Path, tmp_path: Path, content: bytes | None, clause: str
) -> None:
    (published / "a.gz").unlink() if content is None else (published / "a.gz").write_bytes(content)
    place = tmp_path / "place"
    with serving(published) as server:
        with pytest.raises(InputError) as error:
            download_file(f"{server.address}a.gz", place / "a.gz", *KNOWN)
        assert str(error.value) == f"{server.address}a.gz {clause.format(place)}"
    assert list(place.iterdir()) == []


def closed() -> str:
    """An address at which nothing answers."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/a"


def test_what_a_library_cannot_download() -> None:
    """Its failures and a refusal are one sentence; with a probe, it is not even asked; the time-out is as before."""

    def fetch() -> str:
        tried.append(socket.getdefaulttimeout())
        raise ConnectionRefusedError(111, "Connection refused")

    def leave() -> str:
        raise SystemExit(1)

    tried: list[float | None] = []
    address = closed()
    download = LibraryDownload("The file", "put it there", [address, "http://b"])
    sentence = f"The file cannot be downloaded from {address} and http://b (Connection refused): put it there."
    for probed in (False, True):
        with pytest.raises(InputError) as error:
            LibraryDownload("The file", "put it there", [address, "http://b"], is_probed=probed).run(fetch)
        assert str(error.value) == sentence
    assert tried == [network.SOCKET_TIMEOUT_SECONDS] and socket.getdefaulttimeout() is None
    with pytest.raises(InputError, match=r"^The file cannot be downloaded from http\S+ and http://b: put it there\.$"):
        download.run(leave)
    with pytest.raises(InputError, match=r"^The file cannot be downloaded \(X is set\): put it there\.$"):
        LibraryDownload("The file", "put it there", refusal="X is set").run(fetch)
    assert download.run(lambda: "done") == "done"


def test_what_is_left_of_a_longer_file(published: Path, tmp_path: Path) -> None:
    """The server has nothing after it: the file is fetched from the beginning."""
    (tmp_path / "a.gz.partial").write_bytes(CONTENT[:-1])
    (published / "a.gz").write_bytes(b"x" * 100)
    with serving(published) as server, pytest.raises(InputError, match=r"it has 100 bytes instead of 102,400\.$"):
        download_file(f"{server.address}a.gz", tmp_path / "a.gz", *KNOWN)
    assert server.ranges == ["bytes=102399-", None]
