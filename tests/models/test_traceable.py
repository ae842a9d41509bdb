"""Tests of torch.compile: every kind of model is one graph, whose loss and gradients equal the plain ones, and
compile=true trains by such graphs.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import CAPTIONERS, make_captioner, make_model, random_images, random_sentences
from trace_models import FAMILIES

from seqtool.cli import main as cli
from seqtool.data.batches import Batch, make_source, make_target
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.training import compiling
from seqtool.training.compiling import Graphs
from seqtool.training.losses import TrainingLoss
from seqtool.training.trainer import Stop

ROOT = Path(__file__).resolve().parents[2]
KINDS = [f"{family} {settings[0]}" for family, settings in FAMILIES.items()]
COMMON = [
    *("data=parallel", "data.train=train.tsv", "data.valid=valid.tsv", "data.vocabulary.kind=word", "data.processes=1"),
    *("model=transformer", "model.width=8", "model.heads=2", "model.feed_forward=8", "model.encoder_layers=1"),
    *("model.decoder_layers=1", "model.dropout=0", "train.batch_size=4", "train.steps=6", "train.minutes=null"),
    *("train.log_every=1", "validation.max_length=2", "device=cpu"),
]


@pytest.fixture(scope="module")
def traced() -> str:
    """The script's lines, for targets of two tokens."""
    script, pattern = ROOT / "scripts" / "trace_models.py", "|".join(f"^{re.escape(kind)}$" for kind in KINDS)
    command = [sys.executable, "-W", "error", str(script), "--backend", "aot_eager", "--only", pattern]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_one_graph_with_the_plain_loss_and_gradients(traced: str, kind: str) -> None:
    (line,) = (line for line in traced.splitlines() if line.endswith(f"  {kind}"))
    graphs, _, *differences = line.split()[:4]
    assert int(graphs) == 1 and all(float(difference) <= 1e-9 for difference in differences)


def test_every_family_is_traced() -> None:
    assert set(FAMILIES) == {file.stem for file in (config_directory() / "model").glob("*.yaml")}


def write_pairs(directory: Path) -> None:
    """Write pairs of 3 to 11 words; at batches of four, padding leaves one length or two of each side."""
    for name, lengths in (("train", [3, 4, 5, 6, 9, 10, 11, 11, 3, 4]), ("valid", [3])):
        lines = (" ".join("abcdefghijk"[:length]) + "\t" + " ".join("kjihgfedcba"[:length]) for length in lengths)
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def test_compiled_training_gives_the_same_losses(tmp_path: Path) -> None:
    """There are more shapes than graphs, and batches of fewer rows; both are computed without a graph."""
    write_pairs(tmp_path)
    script = [sys.executable, "-W", "error", str(ROOT / "tests" / "compiled_runs.py"), "1"]
    process = subprocess.run([*script, *COMMON], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert re.search(
        r"Compiled 1 of at most 1 graphs in \d+\.\d s; [1-5] of 6 batches were computed without one\.", process.stderr
    )
    compiled, plain = (
        [json.loads(line) for line in (tmp_path / "runs" / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("true", "false")
    )
    for name in ("loss", "gradient_norm", "valid_loss"):
        values, expected = ([record[name] for record in run if name in record] for run in (compiled, plain))
        assert len(values) >= 1 and values == pytest.approx(expected, rel=1e-9)
    assert compiled[-1]["graphs"] == 1 and compiled[-1]["compile_seconds"] > 0 and "graphs" not in plain[-1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.batch_by=tokens", "compile=true needs train.batch_by=sentences, not tokens: change it, or set "),
        ("train.objective=sequence", "compile=true needs train.objective=cross_entropy, not sequence: change it, or "),
    ],
)
def test_losses_without_few_shapes_are_refused(
    setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    assert cli.run(["train", *COMMON, "compile=true", setting], config_directory()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bahdanau-gru", "luong", "sutskever-both-mean", "transformer-post", *CAPTIONERS])
def test_padding_and_draws_outside_the_graph_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nothing is compiled."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    if name in CAPTIONERS:
        model, source = make_captioner(name), replace(random_images(2, seed=1), rows=torch.tensor([0, 0, 1]))
    else:
        model, source = make_model(name), make_source(random_sentences(3, seed=1))
    loss = TrainingLoss(model.train(), smoothing=0.1)
    batch = Batch(source, make_target(random_sentences(3, seed=2)), np.arange(3), tokens=1)
    sums, plain_and_graphs = [], (None, Graphs(loss))
    for graphs in plain_and_graphs:
        loss.graphs = graphs
        torch.manual_seed(0)
        sums.append(loss(batch).sums())
    assert torch.allclose(*sums, rtol=1e-4)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object, **__: object) -> None:
        raise RuntimeError("No working C++ compiler found.\n\nSet TORCHDYNAMO_VERBOSE=1 …")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    graphs, target = Graphs(TrainingLoss(make_model("transformer"), 0.0)), make_target(random_sentences(2, seed=1))
    message = r"cannot compile Transformer here \(No working C\+\+ compiler found\): set compile=false, or install"
    with pytest.raises(InputError, match=message), graphs.compiling(Stop()):
        graphs(make_source(random_sentences(2, seed=2)), target[:, :-1], target[:, 1:], None, carries=False)


def test_only_batches_that_compile_a_graph_count_as_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that never goes back, unlike the wall clock."""
    graphs, seconds = Graphs(TrainingLoss(make_model("transformer"), 0.0)), iter([1.0, 3.5, 10.0])
    monkeypatch.setattr(compiling, "time", SimpleNamespace(perf_counter=seconds.__next__))
    with graphs.compiling(Stop()):
        graphs.shapes.add((3, 4))
    with graphs.compiling(Stop()):
        pass
    assert graphs.facts() == {"graphs": 1, "compile_seconds": 2.5}


@pytest.mark.parametrize(("length", "padded"), [(1, 8), (8, 8), (9, 16), (33, 48), (49, 64), (65, 96), (99, 100)])
def test_lengths_are_padded_to_few(length: int, padded: int) -> None:
    """Learnt positions limit the length; here there are 100."""
    graphs = Graphs(TrainingLoss(make_model("transformer-post"), 0.0))
    assert graphs._padded(torch.ones(2, length)).shape == (2, padded)


@pytest.mark.parametrize(
    ("is_new", "requested", "error", "message"),
    [
        (True, False, InputError, r"torch.compile cannot compile Linear here \(no compiler\): set compile=false, or"),
        (True, True, KeyboardInterrupt, "^$"),  # Ctrl-C ended the compiler, too
        (False, False, RuntimeError, "^no compiler$"),
    ],
)
def test_errors_of_compiling_are_explained(
    is_new: bool, requested: bool, error: type[BaseException], message: str
) -> None:
    """Whether they arise in the forward or in the backward pass."""
    graphs = Graphs.__new__(Graphs)
    graphs.shapes, graphs.model = set(), torch.nn.Linear(1, 1)
    with pytest.raises(error, match=message), graphs.compiling(Stop(requested)):
        if is_new:
            graphs.shapes.add((3, 4))
        raise RuntimeError("no compiler")
