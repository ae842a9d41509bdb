"""Tests of the processes that share a long translation on a CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seqtool
from seqtool.runtime import forks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks them")

SENTENCES = [
    f"{who} {verb} {what}." for who in ("I", "She") for verb in ("see", "want") for what in ("a cat", "the car")
]
SCORES = "score", "log_probability"
# Files of 200 bytes are long. Each process writes its number to a file of that name when it translates.
LONG = """
import os, sys
from pathlib import Path
from seqtool.runtime import forks
forks.LEAST_BYTES = 20
def note_and(change):
    from seqtool.predict.translator import Translator
    hypotheses = Translator.hypotheses
    def noted(*arguments, **settings):
        rank = forks.current.rank if forks.current else "alone"
        Path(f"process-{rank}").write_text(str(os.getpid()))
        change(rank)
        return hypotheses(*arguments, **settings)
    Translator.hypotheses = noted
"""
COMMAND = """
from seqtool.cli import main
call = main._call
def noting_call(*arguments):
    note_and(change)
    return call(*arguments)
main._call = noting_call
main.main()
"""
TRANSLATE = ["translate", "checkpoint=builtin/words", "input=in.txt", "output=out.txt", "device=cpu"]


def start(
    directory: Path, *arguments: str, change: str = "pass", batch: int = 5, **options: Any
) -> "subprocess.Popen[str]":
    """Start a translation whose files are long. `change` is what a process of this rank does first."""
    (directory / "in.txt").write_text("".join(f"{line}\n" for line in SENTENCES * 3), "utf-8")
    code = f"{LONG}\ndef change(rank):\n    {change}\n{COMMAND}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *TRANSLATE, f"batch_size={batch}", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(seqtool.__file__).parents[1])},
        **options,
    )


def processes(directory: Path) -> list[str]:
    return sorted(path.name.removeprefix("process-") for path in directory.glob("process-*"))


def ends(process_id: int, seconds: float = 10) -> bool:
    """Whether a process ends by then."""
    for _ in range(int(seconds / 0.05)):
        status = Path(f"/proc/{process_id}/status")
        if not status.exists() or "State:\tZ" in status.read_text("utf-8"):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A translation that waits for its fork, and the fork's id."""
    process = start(tmp_path, "threads=2", change="import time; time.sleep(60 * rank)", start_new_session=True)
    while not (tmp_path / "process-1").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1)
    yield process, int((tmp_path / "process-1").read_text())
    process.kill()
    process.communicate()


def test_processes_share_a_long_file_and_write_its_lines_in_order(tmp_path: Path) -> None:
    written = []
    for threads, expected in ((3, ["0", "1", "2"]), (1, ["0", "1", "2", "alone"])):
        process = start(tmp_path, f"threads={threads}", "n_best=2", "format=jsonl", "sample=true")
        printed, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and printed == "" and processes(tmp_path) == expected, errors
        written.append([json.loads(line) for line in (tmp_path / "out.txt").read_text("utf-8").splitlines()])
    scores = [
        [translation.pop(name) for line in lines for translation in line["translations"] for name in SCORES]
        for lines in written
    ]
    assert written[0] == written[1] and len(written[0]) == 3 * len(SENTENCES)
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)  # batches of other sizes round differently


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_ends_all_processes_at_once(
    waiting: tuple["subprocess.Popen[str]", int], number: signal.Signals, status: int, tmp_path: Path
) -> None:
    process, fork = waiting
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert process.wait(10) == status and ends(fork) and not (tmp_path / "out.txt").exists()


def test_a_lost_process_is_reported_once(waiting: tuple["subprocess.Popen[str]", int], tmp_path: Path) -> None:
    process, fork = waiting
    os.kill(fork, signal.SIGKILL)
    errors = process.communicate(timeout=10)[1]
    assert process.returncode == 2 and not (tmp_path / "out.txt").exists()
    assert [line for line in errors.splitlines() if line.startswith("seqtool:")] == [
        "seqtool: A process that shared the work was lost (it ended early), possibly out of memory: set threads=1 for "
        "a single process."
    ]


def test_an_error_in_one_process_is_printed_once(tmp_path: Path) -> None:
    change = "from seqtool.errors import InputError\n    if rank == 1: raise InputError('Such as a wrong line.')"
    process = start(tmp_path, "threads=2", change=change)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and errors.count("seqtool:") == errors.count("Such as") == 1, errors
    assert "seqtool: Such as a wrong line." in errors


def test_several_processes_are_for_long_files_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4096, 4097})
    long, short = tmp_path / "long.txt", tmp_path / "short.txt"
    long.write_bytes(forks.LEAST_BYTES // 25 * 3 * (24 * b"." + b"\n"))
    short.write_bytes(long.read_bytes()[: 2 * forks.LEAST_BYTES - 1])
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_bytes(b"." * 1000)

    def number(
        file: Path = long,
        checkpoints: Any = (model,),
        device: str = "cpu",
        threads: Any = None,
        hypotheses: int = 5,
        batch: int = 64,
    ) -> int:
        return forks.worthwhile(str(file), checkpoints, device, threads, hypotheses=hypotheses, batch=batch)

    assert number() == 1  # this process has imported torch
    monkeypatch.delitem(sys.modules, "torch")
    assert number(threads=9, hypotheses=1) == 1 and number(threads=9, hypotheses=10) == 6
    assert number(threads=9, batch=1500) == 2 and number(threads=9, batch=1501) == 1  # of 3,000 lines
    assert number(checkpoints=[model / "best", model / "last"]) == 2 and number(checkpoints=[model / "other"]) == 1
    assert number() == 2 and number(threads=1) == 1 and number(threads=5) == 3
    assert number(short) == number(tmp_path / "missing") == number(checkpoints=(tmp_path / "missing",)) == 1
    assert number(device="cuda") == number(device="mps") == 1
    monkeypatch.setattr(forks, "GPUS", ("null",))  # in /dev
    assert number(device="auto") == 1 and number() == 2
    monkeypatch.setattr(forks, "GPUS", ())
    assert number(device="auto") == 2
    for memory, expected in ((6, 3), (5, 2), (3, 1), (0, 1)):  # half of it counts
        monkeypatch.setattr(forks, "_free_memory", lambda memory=memory: memory * (forks.PROCESS_BYTES + 1000))
        assert number(threads=9) == expected
    monkeypatch.setattr(forks, "_free_memory", lambda: 10**10)
    for name, value in (("OMP_NUM_THREADS", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
        assert number() == 1
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert number() == 3
    monkeypatch.setenv("MKL_NUM_THREADS", "2")  # torch asks it first
    assert number() == 2


def test_a_pipe_is_read_by_one_process_and_a_file_from_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"12345\n" * 4)
    script = "from seqtool.runtime import forks; print(forks._rest(None))"
    command = [sys.executable, "-c", script]
    with (tmp_path / "in.txt").open("rb", buffering=0) as file:
        file.read(12)
        assert subprocess.run(command, stdin=file, capture_output=True, text=True).stdout == "(12, 2)\n"
    assert subprocess.run(command, input="1\n", capture_output=True, text=True).stdout == "(0, 0)\n"
    assert forks._rest(str(tmp_path / "in.txt")) == (24, 4)


def test_memory_is_counted_within_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of files that it has read count as free."""
    texts = {
        "memory.max": "1000000\n",
        "memory.current": "700000\n",
        "memory.stat": "file 500000\ninactive_file 300000\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "ascii")
    monkeypatch.setattr(forks, "CONTAINER", tmp_path)
    assert forks._free_memory() == 600_000
    (tmp_path / "memory.max").write_text("max\n", "ascii")
    assert forks._free_memory() > 1_000_000


@pytest.mark.parametrize(
    ("limit", "number"), [("max 100000", 3), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 3)]
)
def test_cores_are_counted_within_a_container(
    limit: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may use the time of so many cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4096, 4097, 4098})
    (tmp_path / "cpu.max").write_text(f"{limit}\n", "ascii")
    monkeypatch.setattr(forks, "CONTAINER", tmp_path)
    assert forks.cores() == number


@pytest.mark.parametrize("setting", ["beam=[1]", "threads=0", "sample=maybe"])
def test_settings_of_wrong_types_are_refused_for_long_files_too(setting: str, tmp_path: Path) -> None:
    process = start(tmp_path, setting)
    errors = process.communicate(timeout=60)[1]
    name = setting.partition("=")[0]
    assert process.returncode == 2 and "Traceback" not in errors and name in errors.splitlines()[-1], errors


def test_in_a_sandbox_without_a_network_one_process_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("socket.create_connection", refuse)
    with forks.sharing(2):
        assert forks.current is None


def test_where_no_process_can_be_started_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cannot be, and the first, which is a process that only waits, is ended."""
    sleeping = [subprocess.Popen(["sleep", "60"])]

    def fork() -> int:
        if not sleeping:
            raise BlockingIOError("Resource temporarily unavailable")
        return sleeping.pop().pid

    (process,) = sleeping
    monkeypatch.setattr(os, "fork", fork)
    with forks.sharing(3):
        assert forks.current is None and ends(process.pid)
    process.poll()  # it has been waited for


def test_a_process_that_cannot_be_made_silent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go on beside the first, as if it were alone."""

    def fail(_: int) -> None:
        raise OSError("No such file or directory")

    monkeypatch.setattr(forks, "_follow", fail)
    first = os.getpid()
    with forks.sharing(3):
        assert os.getpid() == first and forks.current is not None and forks.current.rank == 0
        deadline = time.monotonic() + 10
        while not forks.current.has_lost_one() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert forks.current.has_lost_one()


def test_processes_share_a_file_where_the_ends_of_processes_are_ignored(tmp_path: Path) -> None:
    """A thread that is left over is the first process's. Torch has no other threads from the beginning."""
    change = "import torch; Path(f'threads-{rank}').write_text(str(torch.get_num_threads()))"
    restore = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = start(tmp_path, "threads=3", batch=12, change=change, restore_signals=False)
    finally:
        signal.signal(signal.SIGCHLD, restore)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and processes(tmp_path) == ["0", "1"], errors
    assert [(tmp_path / f"threads-{rank}").read_text() for rank in range(2)] == ["2", "1"]
