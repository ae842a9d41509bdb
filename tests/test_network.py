"""Tests of downloads: files are complete and checked, or missing; they are resumed; errors are reported."""

import hashlib
import socket
from contextlib import closing
from pathlib import Path

import pytest
from serving import serve_files

from seqtool.errors import InputError
from seqtool.runtime import network
from seqtool.runtime.network import LibraryDownload, download_file

CONTENT = bytes(range(256)) * 400
SIZE_AND_DIGEST = len(CONTENT), hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def published_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "published"
    directory.mkdir()
    (directory / "a.gz").write_bytes(CONTENT)
    return directory


def test_a_file_is_downloaded_whole(published_directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.gz"
    with serve_files(published_directory) as server:
        download_file(f"{server.address}a.gz", path, *SIZE_AND_DIGEST)
    assert path.read_bytes() == CONTENT and server.ranges == [None]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("takes_ranges", [True, False])
def test_an_interrupted_download_is_resumed(
    published_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_ranges: bool
) -> None:
    """Only the missing bytes are fetched, or the whole file if the server does not take ranges."""
    path, partial = tmp_path / "a.gz", tmp_path / "a.gz.partial"
    with serve_files(published_directory, takes_ranges=takes_ranges) as server:
        address = f"{server.address}a.gz"
        server.stall_after = 1_000
        with monkeypatch.context() as patch, pytest.raises(InputError) as error:
            patch.setattr(network, "FILE_TIMEOUT_SECONDS", 0.3)
            download_file(address, path, *SIZE_AND_DIGEST)
        assert str(error.value) == f"{address} timed out after 0.3 seconds: put a.gz into {tmp_path} by hand."
        assert partial.read_bytes() == CONTENT[:1_000] and not path.exists()
        server.stall_after = None
        download_file(address, path, *SIZE_AND_DIGEST)
        assert server.ranges == [None, "bytes=1000-"]
    assert path.read_bytes() == CONTENT and not partial.exists()


def test_a_download_that_the_server_breaks_off_is_resumed(published_directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    with serve_files(published_directory) as server:
        server.stall_after, server.breaks_off = 1_000, True
        with pytest.raises(InputError, match=rf"a\.gz ended after 1,000 of {len(CONTENT):,} bytes"):
            download_file(f"{server.address}a.gz", path, *SIZE_AND_DIGEST)
        with pytest.raises(network.DownloadError, match=f"^ended after 1,000 of {len(CONTENT):,} bytes"):
            network.download(f"{server.address}a.gz", maximum=10**6)
        server.stall_after = None
        download_file(f"{server.address}a.gz", path, *SIZE_AND_DIGEST)
        assert server.ranges == [None, None, "bytes=1000-"] and path.read_bytes() == CONTENT


@pytest.mark.parametrize("partial", [b"x" * 1_000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 1)])
def test_a_wrong_partial_file_is_replaced(published_directory: Path, tmp_path: Path, partial: bytes) -> None:
    path = tmp_path / "a.gz"
    (tmp_path / "a.gz.partial").write_bytes(partial)
    with serve_files(published_directory) as server:
        address = f"{server.address}a.gz"
        if len(partial) < len(CONTENT):
            with pytest.raises(InputError, match=r"/a\.gz is not the expected file: its SHA-256 is"):
                download_file(address, path, *SIZE_AND_DIGEST)
        download_file(address, path, *SIZE_AND_DIGEST)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (CONTENT[:-1], "is not the expected file: it has 102,399 bytes instead of 102,400."),
        (CONTENT + b"x", "has more than 0.1024 MB: put a.gz into {} by hand."),
        (None, "answers with status 404 (Not Found): put a.gz into {} by hand."),
    ],
)
def test_unexpected_files_are_refused_and_removed(
    published_directory: Path, tmp_path: Path, content: bytes | None, clause: str
) -> None:
    (published_directory / "a.gz").unlink() if content is None else (published_directory / "a.gz").write_bytes(content)
    directory = tmp_path / "downloads"
    with serve_files(published_directory) as server:
        with pytest.raises(InputError) as error:
            download_file(f"{server.address}a.gz", directory / "a.gz", *SIZE_AND_DIGEST)
        assert str(error.value) == f"{server.address}a.gz {clause.format(directory)}"
    assert list(directory.iterdir()) == []


def unused_address() -> str:
    """Return an address at which nothing answers."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/a"


def test_failed_downloads_of_libraries_are_reported_in_one_message() -> None:
    """A library is not called if a probe gets no answer. The time-out of sockets is restored afterwards."""

    def fetch() -> str:
        timeouts.append(socket.getdefaulttimeout())
        raise ConnectionRefusedError(111, "Connection refused")

    def exit_program() -> str:
        raise SystemExit(1)

    timeouts: list[float | None] = []
    address = unused_address()
    download = LibraryDownload("The file", "put it there", [address, "http://b"])
    message = f"The file cannot be downloaded from {address} and http://b (Connection refused): put it there."
    for is_probed in (False, True):
        with pytest.raises(InputError) as error:
            LibraryDownload("The file", "put it there", [address, "http://b"], is_probed=is_probed).run(fetch)
        assert str(error.value) == message
    assert timeouts == [network.SOCKET_TIMEOUT_SECONDS] and socket.getdefaulttimeout() is None
    with pytest.raises(InputError, match=r"^The file cannot be downloaded from http\S+ and http://b: put it there\.$"):
        download.run(exit_program)
    with pytest.raises(InputError, match=r"^The file cannot be downloaded \(X is set\): put it there\.$"):
        LibraryDownload("The file", "put it there", refusal="X is set").run(fetch)
    assert download.run(lambda: "done") == "done"


def test_a_partial_file_of_a_longer_file_is_replaced(published_directory: Path, tmp_path: Path) -> None:
    """The server has no bytes that could follow, so the file is fetched from the beginning."""
    (tmp_path / "a.gz.partial").write_bytes(CONTENT[:-1])
    (published_directory / "a.gz").write_bytes(b"x" * 100)
    with (
        serve_files(published_directory) as server,
        pytest.raises(InputError, match=r"it has 100 bytes instead of 102,400\.$"),
    ):
        download_file(f"{server.address}a.gz", tmp_path / "a.gz", *SIZE_AND_DIGEST)
    assert server.ranges == ["bytes=102399-", None]
