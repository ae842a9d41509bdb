"""A server of the files in a directory, on this machine, that can be told to break off."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer(ThreadingHTTPServer):
    """ranges: the Range header of each request. stall_after: bytes of an answer after which nothing follows."""

    daemon_threads = True

    def __init__(self, directory: Path, *, takes_ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.takes_ranges = takes_ranges
        self.ranges: list[str | None] = []
        self.stall_after: int | None = None
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        path = self.server.directory / self.path.removeprefix("/")
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.takes_ranges else 0
        if start > len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        with suppress(OSError):  # the other side gave up
            self.wfile.write(content[start:][: self.server.stall_after])
            while self.server.stall_after is not None:
                self.wfile.flush()
                time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(directory: Path, *, takes_ranges: bool = True) -> Iterator[FileServer]:
    with FileServer(directory, takes_ranges=takes_ranges) as server:
        threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True).start()
        try:
            yield server
        finally:
            server.stall_after = None
            server.shutdown()
