"""Processes that start at once: they are forked from a process that has imported torch and the package."""

import atexit
import fcntl
import multiprocessing
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE, TimeoutExpired
from typing import Any, NamedTuple

import commands
import torch.distributed as dist

from seqtool.cli import main as cli
from seqtool.training.recording import MetricsLog

FORKS: Any = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("processes", "seqtool.cli.setting_errors", "seqtool.cli.train", "seqtool.predict.translator"),
        *("torch.distributed.nn", "torch._dynamo", "sacrebleu", "matplotlib.backends.backend_agg"),
    ]
)


class Command:
    """`python -m seqtool` in a process of its own, with the part of Popen's interface that tests use.

    arguments: the command line without `seqtool`
    stdin, stdout, stderr: PIPE, or a file descriptor; None: those of the process that runs the tests
    cwd: the working directory; None: that of the process that runs the tests
    env: environment variables besides those of the process that runs the tests
    text: whether the pipes are text
    leads_session: whether the process has a session of its own, with standard input as its terminal
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] = {},
        text: bool = False,
        leads_session: bool = False,
    ) -> None:
        child_ends, self.streams = list[Connection | None](), list[Any]()
        for number, stream in enumerate((stdin, stdout, stderr)):
            ours = None
            if stream == PIPE:
                read, write = os.pipe()
                stream, ours = (read, write) if number == 0 else (write, read)
            elif stream is not None:
                stream = os.dup(stream)
            child_ends.append(None if stream is None else Connection(stream, writable=number > 0, readable=number == 0))
            mode = ("w" if number == 0 else "r") + ("" if text else "b")
            self.streams.append(None if ours is None else os.fdopen(ours, mode))
        self.stdin, self.stdout, self.stderr = self.streams
        options = (cwd or Path.cwd(), dict(env), leads_session)
        self.process = FORKS.Process(target=_run_command, args=(arguments, child_ends, *options))
        self.process.start()
        for end in child_ends:
            if end is not None:
                end.close()
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self.process.exitcode  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if (status := self.poll()) is None:
            raise TimeoutExpired("seqtool", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            if stream is not None:
                stream.close()
        self.wait()


def _run_command(
    arguments: Sequence[str],
    streams: Sequence[Connection | None],
    directory: Path,
    environment: dict[str, str],
    leads_session: bool,
) -> None:
    os.chdir(directory)
    os.environ |= environment
    for number, stream in enumerate(streams):
        if stream is not None:
            os.dup2(stream.fileno(), number)
            stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    if leads_session:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C signals the terminal's session
    sys.argv = ["seqtool", *arguments]
    cli.main()


class Ended(NamedTuple):
    """The exit statuses of processes, and what all of them printed on standard output and standard error."""

    statuses: list[int | None]
    output: str
    errors: str


class Group:
    """Processes with the environment and the store that torchrun would give them, started without its delay."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.restarts = -1

    def run(self, *lines: Sequence[str], processes: int = 2, before: str = "", text: str = "") -> Ended:
        """Start all processes, or start them again, and wait for them.

        lines: command lines, each preceded by the dtype of its parameters
        processes: their number; 1: a process without a group
        before: code that each process executes first, with its `rank`
        text: what they can read from the pipe that all of them have as standard input
        """
        self.restarts += 1
        files = tuple(self.directory / f"{name}-{self.restarts}.txt" for name in ("output", "errors"))
        for file in files:
            file.write_bytes(b"")  # an earlier group may have written to it
        environment = {
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_RUN_ID": "here",
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        reader, writer = multiprocessing.Pipe(duplex=False)
        group = []
        for rank in map(str, range(processes)):
            variables = environment | {"RANK": rank, "LOCAL_RANK": rank} if processes > 1 else {}
            arguments = (self.directory, reader, *files, variables, before, lines)
            group.append(FORKS.Process(target=_run, args=arguments))
        for process in group:
            process.start()
        reader.close()
        os.write(writer.fileno(), text.encode())  # less than the pipe holds
        writer.close()
        for process in group:
            process.join(120)
        return Ended([process.exitcode for process in group], *(file.read_text() for file in files))


def _run(
    directory: Path,
    standard_input: Connection,
    output: Path,
    errors: Path,
    environment: dict[str, str],
    before: str,
    lines: Sequence[Sequence[str]],
) -> None:
    """Run command lines as one process of the group, and exit with the status of the last."""
    os.chdir(directory)
    os.environ |= environment
    os.dup2(standard_input.fileno(), 0)
    sys.stdin = os.fdopen(0)
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    MetricsLog.draw = lambda log, *, last=False: None  # type: ignore[method-assign]
    try:
        exec(before, {"rank": int(environment.get("RANK", 0))})
        status = commands.run_lines(lines)
        if not status:
            atexit._run_exitfuncs()
            commands.check_threads()
    except BaseException as error:
        status = 1
        print(repr(error), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
