#!/usr/bin/env python
"""Measure the speed and memory of `seqtool demo` with many clients, compared with `seqtool translate`.

    python scripts/benchmarks/benchmark_demo.py --checkpoint runs/first --input test.en --threads 2 \\
        --output results/demo.json

32 clients each send 20 requests of 50 sentences at the same time, and every answer is compared with the command's
translation. Meanwhile 16 other clients send one byte per second, 16 stop in the middle of a request, and once a second
a client disconnects before its answer. The command translates the same sentences from one file; its rate is computed
without the time for eight of them, which covers starting and loading.

Then 20,000 requests of one short sentence each are sent. The memory is measured after 2,000 of them, and after all.
"""

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import benchmarking

from seqtool.runtime.files import read_lines

CLIENTS, REQUESTS, SENTENCES = 32, 20, 50
START_UP_SENTENCES = 8  # whose time covers starting and loading
SMALL_REQUESTS, FIRST_REQUESTS = (
    20_000,
    2_000,
)  # requests of one sentence: all, and those before memory is first measured
BAD_CLIENTS = 16  # the number that send slowly, and of those that stop halfway


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--input", required=True, type=Path, help="sentences, one per line")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--small", type=int, default=SMALL_REQUESTS, help="requests of one sentence")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    lines = [line for line in read_lines(arguments.input) if line.strip()]
    lines = list(islice(cycle(lines), arguments.clients * REQUESTS * SENTENCES))
    translation = command(lines, arguments.checkpoint, arguments.threads)
    record = {
        "machine": benchmarking.machine(arguments.threads),
        **measure_server(lines, translation["texts"], arguments),
    }
    record["translate_sentences_per_second"] = round(translation["rate"], 1)
    record["ratio"] = round(record["sentences_per_second"] / translation["rate"], 3)
    print(json.dumps(record, indent=1))
    benchmarking.write(record, arguments.output)


def command(lines: list[str], checkpoint: str, threads: int) -> dict[str, Any]:
    """The translations of `seqtool translate`, and its sentences per second."""
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as directory:
        seconds = {}
        for count in (START_UP_SENTENCES, len(lines)):
            file, output = Path(directory, "input"), Path(directory, "output")
            file.write_text("".join(f"{line}\n" for line in lines[:count]), encoding="utf-8")
            start = time.perf_counter()
            overrides = [f"checkpoint={checkpoint}", f"input={file}", f"output={output}", f"threads={threads}"]
            subprocess.run([sys.executable, "-m", "seqtool", "translate", *overrides], check=True, capture_output=True)
            seconds[count] = time.perf_counter() - start
        texts = output.read_text(encoding="utf-8").splitlines()
    return {"texts": texts, "rate": len(lines) / (seconds[len(lines)] - seconds[START_UP_SENTENCES])}


def measure_server(lines: list[str], texts: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of a server: its rate, the number of answers that differ from the command's, and its memory."""
    settings = [f"checkpoint={arguments.checkpoint}", f"threads={arguments.threads}", "port=0"]
    server = subprocess.Popen([sys.executable, "-m", "seqtool", "demo", *settings], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r":(\d+)/", server.stdout.readline())
        assert address is not None
        port = int(address[1])
        while ask(port, "/api/model")["state"] == "loading":
            time.sleep(0.2)
        requests = [slice(i, i + SENTENCES) for i in range(0, len(lines), SENTENCES)]
        with ThreadPoolExecutor(arguments.clients) as pool:
            with bad_clients(port) as disconnections:
                start = time.perf_counter()
                answers = list(pool.map(lambda part: ask(port, "/api/translate", {"sentences": lines[part]}), requests))
                seconds = time.perf_counter() - start
            written = [best["translations"][0]["text"] for answer in answers for best in answer["translations"]]
            small = {"sentences": lines[:1]}
            list(pool.map(lambda _: ask(port, "/api/translate", small), range(min(FIRST_REQUESTS, arguments.small))))
            before = memory(server.pid)
            list(
                pool.map(lambda _: ask(port, "/api/translate", small), range(max(0, arguments.small - FIRST_REQUESTS)))
            )
            after = memory(server.pid)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
    return {
        "clients": arguments.clients,
        "slow_clients": BAD_CLIENTS,
        "hanging_clients": BAD_CLIENTS,
        "clients_that_broke_off": len(disconnections),
        "requests": len(requests),
        "sentences": len(lines),
        "sentences_per_second": round(len(lines) / seconds, 1),
        "other_than_the_commands": sum(ours != text for ours, text in zip(written, texts, strict=True)),
        "small_requests": arguments.small,
        f"megabytes_after_{FIRST_REQUESTS}": round(before),
        "megabytes_after_all": round(after),
    }


@contextmanager
def bad_clients(port: int) -> Iterator[list[float]]:
    """Run clients that send slowly, stop, or disconnect; yield the list of times at which one has disconnected."""
    body = json.dumps({"sentences": ["a"] * SENTENCES})
    request = f"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    finished, disconnections = threading.Event(), list[float]()

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port))

    def send_slowly() -> None:
        while not finished.is_set():
            with suppress(OSError), connect() as stream:  # the server closes the connection after a while
                for byte in request:
                    if finished.wait(1):
                        return
                    stream.sendall(bytes([byte]))

    def stop_halfway() -> None:
        while not finished.is_set():
            with suppress(OSError), connect() as stream:
                stream.sendall(request[:-1])
                finished.wait(70)  # by then the server has refused it

    def disconnect() -> None:
        while not finished.wait(1):
            with connect() as stream:
                stream.sendall(request)
            disconnections.append(time.time())

    threads = [threading.Thread(target=client) for client in [*[send_slowly, stop_halfway] * BAD_CLIENTS, disconnect]]
    for thread in threads:
        thread.start()
    try:
        yield disconnections
    finally:
        finished.set()
        for thread in threads:
            thread.join()


def ask(port: int, path: str, body: Any = None) -> Any:
    """The answer to a request, a GET request if it has no body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            sys.exit(f"{path} was answered with {answer.status}: {text}")
        return json.loads(text)
    finally:
        connection.close()


def memory(pid: int) -> float:
    """The resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
