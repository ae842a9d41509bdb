"""A local HTTP server for the files of a directory, which can stall in the middle of an answer."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer(ThreadingHTTPServer):
    """Serves the files of a directory.

    ranges: the Range header of each request
    stall_after: the number of bytes after which an answer stalls; None: answers are complete
    breaks_off: whether an answer ends instead of stalling
    """

    daemon_threads = True

    def __init__(self, directory: Path, *, takes_ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.takes_ranges = takes_ranges
        self.ranges: list[str | None] = []
        self.stall_after: int | None = None
        self.breaks_off = False
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        path = self.server.directory / self.path.removeprefix("/")
        requested_range = self.headers.get("Range")
        self.server.ranges.append(requested_range)
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        start = 0
        if requested_range and self.server.takes_ranges:
            start = int(requested_range.removeprefix("bytes=").removesuffix("-"))
        if start > len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        with suppress(OSError):  # the client closed the connection
            self.wfile.write(content[start:][: self.server.stall_after])
            while self.server.stall_after is not None and not self.server.breaks_off:
                self.wfile.flush()
                time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serve_files(directory: Path, *, takes_ranges: bool = True) -> Iterator[FileServer]:
    """Within the context, serve a directory in a thread."""
    with FileServer(directory, takes_ranges=takes_ranges) as server:
        threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True).start()
        try:
            yield server
        finally:
            server.stall_after = None
            server.shutdown()
