"""Tests of groups of processes: errors, waiting, stopping, and launchers other than torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Group

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
SHORT_TIMEOUT = """
from datetime import timedelta
from seqtool.runtime import distributed
distributed.STEP_TIMEOUT = timedelta(seconds=3)
"""


def run_group(group: Group, *arguments: str, **options: Any) -> tuple[list[int | None], str]:
    """Run a command in all processes of a group. Return their exit statuses and what they printed."""
    ended = group.run(["float32", *arguments], **options)
    return ended.statuses, ended.output + ended.errors


def messages_in(errors: str) -> list[str]:
    """Return seqtool's error messages; another process's progress bar may stand before them."""
    return re.findall(r"seqtool: .*", errors)


MISSING = (
    "seqtool: There is no run to resume at runs/a: start it without train.resume, or change to the directory it is in."
)


def test_under_torchrun_an_error_is_printed_once(tmp_path: Path) -> None:
    """The first process fails while the other one waits for it, and torchrun then restarts both."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    result = subprocess.run(
        [*torchrun, "-m", "seqtool", *TRAIN, "train.resume=true"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1 and re.search("exitcode *: 2 ", result.stderr)
    assert messages_in(result.stderr) == [MISSING]


def test_stopping_a_group_is_not_a_failure(tmp_path: Path) -> None:
    """All processes end with 0, since torchrun restarts those that fail; a single process would end with 130."""
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
    statuses, errors = run_group(Group(tmp_path), *TRAIN, "train.steps=4", before=stopping)
    assert statuses == [0, 0] and "Resume with: seqtool train run=a train.resume=true" in errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # an error in the configuration, before the group is formed
        (["train.label_smoothing=2"], "seqtool: train.label_smoothing must be below 1, not 2.0."),
        # an error in the first process, while the others wait for it
        (["train.resume=true"], MISSING),
        # an error in every process
        (
            ["device=cuda:0"],
            "seqtool: device=cuda:0 would put all 2 processes of this machine on one GPU: set device=cuda and each "
            "takes its own, those of CUDA_VISIBLE_DEVICES in turn; or lower --nproc-per-node to 1.",
        ),
    ],
)
def test_bad_input_is_reported_once(tmp_path: Path, settings: list[str], message: str) -> None:
    """A single process prints the message, and the processes that are started in their place do not print it again."""
    group = Group(tmp_path)
    statuses, errors = run_group(group, *TRAIN, *settings)
    assert (statuses, messages_in(errors)) == ([2, 2], [message])
    statuses, errors = run_group(group, *TRAIN, *settings)
    assert (statuses, messages_in(errors)) == ([2, 2], [])
    statuses, errors = run_group(group, *TRAIN, "seed=-1")
    assert (statuses, messages_in(errors)) == ([2, 2], ["seqtool: seed must be at least 0, not -1."])


SLOW_DATA = """
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
    """The others read the data when all of it is ready, even if that takes longer than the timeout between them (here
    5 seconds against 3).
    """
    (tmp_path / "slow.py").write_text(SLOW_DATA)
    before = f"{SHORT_TIMEOUT}import sys\nsys.path.insert(0, '.')"
    settings = ["data._target_=slow.Slow", "model.tie=all"]  # the second is refused once the data are ready
    statuses, errors = run_group(Group(tmp_path), *TRAIN, *settings, processes=3, before=before)
    assert statuses == [2, 2, 2]
    assert [line.partition(":")[2] for line in messages_in(errors)] == [
        " model.tie=all needs one vocabulary for both sides: set data.vocabulary.joint=true."
    ]
    lines = (tmp_path / "fetched").read_text().splitlines()
    assert (lines[0], sorted(lines[1:])) == ("0 0", ["1 1", "2 1"])


@pytest.mark.parametrize(
    ("failure", "pattern"),
    [
        ("raise KeyError('no such thing')", r"Lost the connection to another process, which stopped with KeyError: .*"),
        ("os._exit(1)", r"Lost the connection to another process \([^(]*Connection [^(]*\): torchrun reports .*"),
        (
            "time.sleep(7); os._exit(1)",
            r"Another process did not answer within 3 seconds \(.*[Tt]imed out.*\): it hangs or is much slower\.",
        ),
    ],
)
def test_the_cause_of_a_failure_is_reported_once(tmp_path: Path, failure: str, pattern: str) -> None:
    """A process fails at its second step, and the two others report it in a single message."""
    before = f"""
{SHORT_TIMEOUT if "sleep" in failure else "from seqtool.runtime import distributed"}
import os, time
total, calls = distributed.total, []
def failing(tensor):
    calls.append(tensor)
    if len(calls) == 2 and rank == 1:
        {failure}
    return total(tensor)
distributed.total = failing
"""
    statuses, errors = run_group(Group(tmp_path), *TRAIN, before=before, processes=3)
    assert statuses == [2, 1, 2]
    assert len(messages_in(errors)) == 1 and re.fullmatch(f"seqtool: {pattern}", messages_in(errors)[0]), errors


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
    settings = {"train": TRAIN[1:], "translate": ["checkpoint=x"], "caption": ["checkpoint=x", "images=."]}
    assert cli.run([command, *settings.get(command, ["checkpoint=x"])], config_directory()) == 2
    variable = next(iter(variables))
    assert capsys.readouterr().err == (
        f"seqtool: {variable}=4 shows that a launcher other than torchrun started 4 processes, which would all do the "
        f"same: use torchrun --nproc-per-node=4 -m seqtool … instead, or unset {variable} for a single process.\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1", "RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4"},  # set by the user for another purpose
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script
    ],
)
def test_a_single_process_is_accepted(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.run(["eval", "checkpoint=x"], config_directory()) == 2
    assert capsys.readouterr().err.startswith("seqtool: There is no run or checkpoint at x.")


def test_several_srun_tasks_give_a_warning(
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


def test_a_named_gpu_is_refused_for_two_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process on each of two machines may use it."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(distributed, "local_rank", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]  # NCCL uses torch's current device
    monkeypatch.setattr(distributed, "local_size", lambda: 2)
    with pytest.raises(InputError, match=r"^device=cuda:1 would put all 2 processes of this machine on one GPU: "):
        choose_device("cuda:1")
    assert choose_device("cuda") == torch.device("cuda:0")
