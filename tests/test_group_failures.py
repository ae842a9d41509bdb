"""What several processes say and do where one of them fails, waits, or was started by something else than torchrun."""

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.runtime import distributed
from seqtool.runtime.devices import choose_device
from seqtool.runtime.files import config_directory

SIZES = ["model.embedding=8", "model.encoder_hidden=8", "model.decoder_hidden=8", "model.alignment=8", "model.maxout=8"]
TRAIN = [
    *("train", "run=a", "device=cpu", "threads=1", "data.train=60", "data.valid=10", "data.test=10", *SIZES),
    *("data.processes=1", "data.vocabulary.kind=word", "train.steps=2", "validation.max_length=5"),
]
IMPATIENT = """
from datetime import timedelta
from seqtool.runtime import distributed
distributed.STEP_TIMEOUT = timedelta(seconds=3)
"""


class Launched:
    """Processes with the environment and the store that torchrun gives them, without the seconds that it takes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.restarts = -1

    def run(self, *arguments: str, processes: int = 2, before: str = "") -> tuple[list[int | None], str]:
        """Start all of them, or start them anew: exit statuses, and what all have said."""
        self.restarts += 1
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["seqtool.cli.train", "torch.distributed.nn"])
        environment = {
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_RUN_ID": "here",
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        errors = self.place / f"errors-{self.restarts}.txt"
        started = [
            context.Process(
                target=work,
                args=(self.place, errors, {**environment, "RANK": str(i), "LOCAL_RANK": str(i)}, before, arguments),
            )
            for i in range(processes)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(60)
        return [process.exitcode for process in started], errors.read_text()


def work(place: Path, errors: Path, environment: dict[str, str], before: str, arguments: tuple[str, ...]) -> None:
    """One process; it leaves as a process does that ends, and closes its connections."""
    os.chdir(place)
    os.environ |= environment
    with errors.open("a") as file:
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
    exec(before, {"rank": int(environment["RANK"])})
    try:
        status = cli.run(arguments, config_directory())
    except BaseException as error:
        status = 1
        print(repr(error), file=sys.stderr)
    sys.stderr.flush()
    os._exit(status)


def said(errors: str) -> list[str]:
    """What seqtool said before it ended, perhaps behind another process's progress bar."""
    return re.findall(r"seqtool: .*", errors)


MISSING = (
    "seqtool: There is no run to resume at runs/a: start it without train.resume, or change to the directory it is in."
)


def test_torchrun_itself(tmp_path: Path) -> None:
    """A sentence of the first process, for which the other one waits, is said once, also when both start anew."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    ended = subprocess.run(
        [*torchrun, "-m", "seqtool", *TRAIN, "train.resume=true"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1 and re.search("exitcode *: 2 ", ended.stderr)
    assert said(ended.stderr) == [MISSING]


def test_a_group_that_is_stopped_has_not_failed(tmp_path: Path) -> None:
    """Torchrun would start processes again that end with another status; a process alone ends with 130."""
    stopping = """
import os, signal
from seqtool.training.recording import MetricsLog
updated = MetricsLog.updated
def stopped(self, progress, rate):
    updated(self, progress, rate)
    if rank == 1 and progress.step == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
MetricsLog.updated = stopped
"""
    statuses, errors = Launched(tmp_path).run(*TRAIN, "train.steps=4", before=stopping)
    assert statuses == [0, 0] and "Resume with: seqtool train run=a train.resume=true" in errors


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        # of the configuration, before there is a group
        (["train.label_smoothing=2"], "seqtool: train.label_smoothing must be below 1, not 2.0."),
        # of the first process, while the others wait for it
        (["train.resume=true"], MISSING),
        # of each process
        (
            ["device=cuda:0"],
            "seqtool: device=cuda:0 would put all 2 processes of this machine on one GPU: set device=cuda and each "
            "takes its own, those of CUDA_VISIBLE_DEVICES in turn; or lower --nproc-per-node to 1.",
        ),
    ],
)
def test_bad_input_is_said_once(tmp_path: Path, settings: list[str], sentence: str) -> None:
    """By one process, and not again by those that are started in their place."""
    launched = Launched(tmp_path)
    statuses, errors = launched.run(*TRAIN, *settings)
    assert (statuses, said(errors)) == ([2, 2], [sentence])
    statuses, errors = launched.run(*TRAIN, *settings)
    assert (statuses, said(errors)) == ([2, 2], [])
    statuses, errors = launched.run(*TRAIN, "seed=-1")
    assert (statuses, said(errors)) == ([2, 2], ["seqtool: seed must be at least 0, not -1."])


SLOW = """
import os, time
from pathlib import Path
from seqtool.data.corpora.parallel import Toy

class Slow(Toy):
    def fetch(self):
        there = len(list(Path("cache").glob("*/summary.json")))
        with open("fetched", "a") as file:
            file.write(f"{os.environ['RANK']} {there}\\n")
        if not there:
            time.sleep(5)
        super().fetch()
"""


def test_the_first_process_prepares_while_the_others_wait(tmp_path: Path) -> None:
    """The others look at the data when all is there, however long the first one takes: here longer than they are
    ready to wait for each other.
    """
    (tmp_path / "slow.py").write_text(SLOW)
    before = f"{IMPATIENT}import sys\nsys.path.insert(0, '.')"
    settings = ["data._target_=slow.Slow", "model.tie=all"]  # which is refused after that
    statuses, errors = Launched(tmp_path).run(*TRAIN, *settings, processes=3, before=before)
    assert statuses == [2, 2, 2]
    assert [line.partition(":")[2] for line in said(errors)] == [
        " model.tie=all needs one vocabulary for both sides: set data.vocabulary.joint=true."
    ]
    lines = (tmp_path / "fetched").read_text().splitlines()
    assert (lines[0], sorted(lines[1:])) == ("0 0", ["1 1", "2 1"])


@pytest.mark.parametrize(
    ("fails", "pattern"),
    [
        ("raise KeyError('no such thing')", r"Lost the connection to another process, which stopped with KeyError: .*"),
        ("os._exit(1)", r"Lost the connection to another process \([^(]*Connection [^(]*\): torchrun reports .*"),
        (
            "time.sleep(7); os._exit(1)",
            r"Another process did not answer within 3 seconds \(.*[Tt]imed out.*\): it hangs or is much slower\.",
        ),
    ],
)
def test_the_cause_of_a_failure_is_said(tmp_path: Path, fails: str, pattern: str) -> None:
    """A process that fails at its second step, and what the two others say of it: one sentence."""
    before = f"""
{IMPATIENT if "sleep" in fails else "from seqtool.runtime import distributed"}
import os, time
total, calls = distributed.total, []
def failing(tensor):
    calls.append(tensor)
    if len(calls) == 2 and rank == 1:
        {fails}
    return total(tensor)
distributed.total = failing
"""
    statuses, errors = Launched(tmp_path).run(*TRAIN, before=before, processes=3)
    assert statuses == [2, 1, 2]
    assert len(said(errors)) == 1 and re.fullmatch(f"seqtool: {pattern}", said(errors)[0]), errors


@pytest.mark.parametrize(
    "variables", [{"OMPI_COMM_WORLD_SIZE": "4"}, {"WORLD_SIZE": "4", "RANK": "0"}, {"WORLD_SIZE": "4", "RANK": "3"}]
)
@pytest.mark.parametrize("command", ["train", "translate", "caption", "eval"])
def test_other_launchers_are_refused(
    variables: dict[str, str],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    others = {"train": TRAIN[1:], "translate": ["checkpoint=x"], "caption": ["checkpoint=x", "images=."]}
    assert cli.run([command, *others.get(command, ["checkpoint=x"])], config_directory()) == 2
    variable = next(iter(variables))
    assert capsys.readouterr().err == (
        f"seqtool: {variable}=4 shows that another launcher than torchrun started 4 processes, which would all do the "
        f"same: use torchrun --nproc-per-node=4 -m seqtool … instead, or unset {variable} for a single process.\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1", "RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4"},  # of somebody's own
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script
    ],
)
def test_a_process_by_itself_is_not_refused(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.run(["eval", "checkpoint=x"], config_directory()) == 2
    assert capsys.readouterr().err.startswith("seqtool: There is no run or checkpoint at x.")


def test_tasks_of_srun_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    for process in ("0", "1"):
        monkeypatch.setenv("SLURM_PROCID", process)
        assert cli.run(["eval", "checkpoint=x"], config_directory()) == 2
    assert caplog.messages == [
        "srun started 4 tasks, which do not work together: for that, start torchrun once on each machine."
    ]


def test_a_named_gpu_is_for_one_process_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On each of two machines, say."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(distributed, "local_rank", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]  # where NCCL looks
    monkeypatch.setattr(distributed, "local_size", lambda: 2)
    with pytest.raises(InputError, match=r"^device=cuda:1 would put all 2 processes of this machine on one GPU: "):
        choose_device("cuda:1")
    assert choose_device("cuda") == torch.device("cuda:0")
