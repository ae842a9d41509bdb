"""Check that training runs that are killed at random moments and resumed end as if they had not been interrupted.

    python scripts/development/kill_test.py --kills 30 --seed 1

Training runs of four model families, with dropout and each kind of vocabulary, are killed (SIGKILL) in their start,
steps, validations and saves, and resumed with train.resume=auto until they finish. All kept checkpoints (weights,
optimiser, random generators, progress) and the metrics, except times, must be identical to those of an uninterrupted
run. Learning curves are not drawn, since nothing reads them and they would take most of the time.
"""

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import hydra  # noqa: F401  imported here, so that no forked process has to
import numpy as np
import torch
from PIL import Image

import seqtool.cli.train
import seqtool.data.images.image_store  # noqa: F401
from seqtool.cli import main as cli
from seqtool.training import checkpoint
from seqtool.training.recording import MetricsLog
from seqtool.training.trainer import Trainer
from seqtool.training.validation import StreamValidator, Validator

COMMON = [
    *("device=cpu", "threads=1", "data.processes=1", "data.vocabulary.minimum_count=1"),
    *("model.embedding=8", "model.dropout=0.3", "schedule=plateau", "schedule.patience=1"),
    *("train.minutes=null", "train.steps=24", "train.validate_every=2", "train.batch_size=8", "train.log_every=3"),
    *("optim.lr=0.01", "train.keep_last=2", "train.save_minutes=0.0005"),  # saves after nearly every step
]
SEARCH = "validation.max_length=8"
TEXT = ["data=parallel", "data.train=train.tsv", "data.valid=valid.tsv", SEARCH]
FAMILIES = {
    "sutskever": [*TEXT, "model=sutskever", "model.hidden=16", "model.layers=2", "train.accumulate=2"],
    "bahdanau": [
        *(*TEXT, "model=bahdanau", "model.encoder_hidden=8", "model.decoder_hidden=16", "model.alignment=8"),
        *("model.maxout=8", "train.average_last=2"),
    ],
    "show_attend_tell": [
        *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model=show_attend_tell"),
        *("model.attention=hard", "model.hidden=16", "model.alignment=8", "model.encoder.fine_tune_from=4", SEARCH),
    ],
    "language_model": [
        *("data=text", "data.train=train.tsv", "data.valid=valid.tsv", "model=language_model", "model.hidden=16"),
        "train.bptt=5",
    ],
}
VOCABULARIES = {
    "word": ["data.vocabulary.kind=word"],
    "char": ["data.vocabulary.kind=char"],
    "separate": ["data.vocabulary.kind=unigram", "data.vocabulary.size=14"],
    "joint": ["data.vocabulary.kind=unigram", "data.vocabulary.size=14", "data.vocabulary.joint=true"],
}
ONE_VOCABULARY = ("show_attend_tell", "language_model")  # families without a joint vocabulary
PHASES = ("start", "step", "validation", "save", "removal", "between")
AIM_WEIGHTS = {
    "start": 2,
    "step": 3,
    "validation": 3,
    "save": 8,
    "removal": 4,
    "between": 2,
}  # how often each phase is chosen
TIMES = (
    "seconds",
    "tokens_per_second",
    "decoded_tokens_per_second",
    "peak_memory",
)  # keys of the metrics that may differ


@dataclass
class ProcessEnd:
    """The end of a process.

    status: its exit status
    phase: the phase in which it ended
    durations: the seconds that each occurrence of each phase took
    """

    status: int
    phase: str
    durations: dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--vocabularies", nargs="+", choices=VOCABULARIES, default=list(VOCABULARIES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = random.Random(arguments.seed)
    phases: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="seqtool-kills-") as scratch:
        os.chdir(scratch)
        make_data()
        pairs = list(product(arguments.families, arguments.vocabularies))
        combinations = [pair for pair in pairs if pair[0] not in ONE_VOCABULARY or pair[1] != "joint"]
        for number, (family, vocabulary) in enumerate(combinations):
            kills = (arguments.kills + number) // len(combinations)
            phases += Counter(test(family, vocabulary, kills, generator))
    counts = ", ".join(f"{phases[phase]} in {phase}" for phase in PHASES)
    print(f"{phases.total()} kills ({counts}): every run ended like the uninterrupted one, bit for bit.")


def test(family: str, vocabulary: str, kills: int, generator: random.Random) -> list[str]:
    """Kill runs of this family with this vocabulary `kills` times. Return the phases in which they were killed."""
    if kills == 0:
        return []
    settings = [*FAMILIES[family], *VOCABULARIES[vocabulary], *COMMON]
    name = f"{family}-{vocabulary}"
    uninterrupted = f"{name}-uninterrupted"
    end = train_in_child(settings, uninterrupted, aim=None)
    assert end.status == 0, f"{uninterrupted} ended with exit status {end.status}: {log(uninterrupted)}"
    mean_durations = {phase: sum(times) / len(times) for phase, times in end.durations.items()}
    phases: list[str] = []
    runs = 0
    while len(phases) < kills:
        runs += 1
        run = f"{name}-{runs}"
        while True:
            aim = None
            if len(phases) < kills:
                phase = generator.choices(list(AIM_WEIGHTS), list(AIM_WEIGHTS.values()))[0]
                occurrence = 1 if phase == "start" else generator.randint(1, 6 if phase in ("step", "between") else 2)
                aim = phase, occurrence, generator.uniform(0, mean_durations[phase])
            end = train_in_child(settings, run, aim)
            if end.status == -signal.SIGKILL:
                phases.append(end.phase)
                continue
            assert end.status == 0, f"{run} cannot be resumed: exit status {end.status}: {log(run)}"
            break
        compare(Path("runs", uninterrupted), Path("runs", run))
        end = train_in_child(settings, run, aim=None)
        assert end.status == 0, f"{run} cannot be resumed once it has finished: {log(run)}"
        compare(Path("runs", uninterrupted), Path("runs", run))
        print(f"{run}: equal after {len(phases)} kills of {name}", flush=True)
    return phases


def train_in_child(settings: list[str], run: str, aim: tuple[str, int, float] | None) -> ProcessEnd:
    """Train in a forked process and wait for its end. It is killed at `aim`, if it gets there.

    aim: the phase, its occurrence counted from 1, and the seconds since the phase began
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        train(settings, run, writer)
    os.close(writer)
    phase, phase_start = "start", time.monotonic()
    occurrences: Counter[str] = Counter([phase])
    durations: dict[str, list[float]] = {phase: [] for phase in PHASES}
    deadline = None
    while True:
        if aim is not None and deadline is None and occurrences[aim[0]] == aim[1]:
            deadline = time.monotonic() + aim[2]
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([reader], [], [], wait)[0]:
            os.kill(child, signal.SIGKILL)
            deadline, aim = None, None
            continue
        code = os.read(reader, 1)
        if not code:
            break
        durations[phase].append(time.monotonic() - phase_start)
        phase, phase_start = PHASES[code[0]], time.monotonic()
        occurrences[phase] += 1
    os.close(reader)
    return ProcessEnd(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), phase, durations)


def train(settings: list[str], run: str, writer: int) -> None:
    """Run `seqtool train` in this process, and write to the pipe `writer` whenever a phase begins or ends."""

    def with_reports(function: Callable[..., Any], *, before: str | None = None, after: str | None = None) -> Any:
        """The function, which reports that the phase `before` begins, and after it that `after` begins."""

        def report(phase: str | None) -> None:
            if phase is not None:
                os.write(writer, bytes([PHASES.index(phase)]))

        def call(*arguments: Any, **options: Any) -> Any:
            report(before)
            result = function(*arguments, **options)
            report(after)
            return result

        return call

    status = 1
    try:
        output = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        Trainer._begin_update = with_reports(Trainer._begin_update, before="step")
        MetricsLog.updated = with_reports(MetricsLog.updated, after="between")
        for validator in (Validator, StreamValidator):
            validator.__call__ = with_reports(validator.__call__, before="validation", after="between")
        checkpoint.save = with_reports(checkpoint.save, before="save", after="between")
        checkpoint.remove = with_reports(checkpoint.remove, before="removal", after="between")
        MetricsLog.draw = lambda self, *, last=False: None
        paths = [f"data.cache=cache-{run}", f"run={run}", "train.resume=auto"]
        status = cli.run(["train", *settings, *paths], cli.config_directory())
        sys.stdout.flush()
    finally:
        os._exit(status)


def log(run: str) -> str:
    """The end of what a run has printed."""
    return Path(f"{run}.log").read_text(encoding="utf-8")[-3000:]


def compare(uninterrupted: Path, run: Path) -> None:
    """Raise AssertionError if a run differs from the uninterrupted one, or if it has unfinished files."""
    expected_names = sorted(path.name for path in (uninterrupted / "checkpoints").iterdir())
    actual_names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert expected_names == actual_names, f"{run} keeps {actual_names}, not {expected_names}"
    for name in expected_names:
        expected, actual = (checkpoint.read(path / "checkpoints" / name) for path in (uninterrupted, run))
        for file in ("model.safetensors", "training.safetensors"):
            pair = [path.read_bytes() if path.exists() else None for path in (expected.path / file, actual.path / file)]
            assert pair[0] == pair[1], f"{actual.path / file} differs"
        sides = (expected.progress, actual.progress)
        progress = [{key: value for key, value in side.items() if key != "seconds"} for side in sides]
        assert progress[0] == progress[1], f"the progress of {actual.path} differs: {progress}"
    assert metrics(uninterrupted) == metrics(run), f"the metrics of {run} differ"
    unfinished = [path.name for path in run.rglob(".*") if path.name != ".lock"]
    assert not unfinished, f"{run} has unfinished files: {unfinished}"


def metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run's metrics, without times."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def make_data() -> None:
    """Make sentences of letters to reverse, and pictures of a single colour."""
    generator = np.random.default_rng(0)
    for name, count in (("train", 90), ("valid", 6)):
        rows = [generator.choice(list("abcdef"), generator.integers(2, 6)).tolist() for _ in range(count)]
        text = "".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows)
        Path(f"{name}.tsv").write_text(text, encoding="utf-8")
    Path("photos").mkdir()
    with Path("photos", "captions.jsonl").open("w", encoding="utf-8") as file:
        for number in range(40):
            colour = generator.integers(0, 2, 3)
            Image.fromarray(np.full((16, 16, 3), 200 * colour, np.uint8)).save(f"photos/{number}.png")
            caption = " ".join(f"{'much' if part else 'no'} {name}" for part, name in zip(colour, "rgb", strict=True))
            file.write(json.dumps({"file": f"{number}.png", "captions": [caption]}) + "\n")


if __name__ == "__main__":
    main()
