"""What training and decoding ask of a GPU, counted on the simulated one: kernels, waits, and what happens if its memory
is full.

The limits lie above the counts of results/launches.json, so that a change which starts many more kernels is noticed.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pretended_gpu
import pytest
import torch

from seqtool.cli import main as cli
from seqtool.decoding.beam_search import highest_sums, on_cpu
from seqtool.models import tree
from seqtool.models.fast.products import add_product, adds_to_single
from seqtool.runtime.files import config_directory

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
LIMITS = {  # of kernels and waits of an update, and of a step of decoding
    "RNNsearch, gru": (1000, 1, 31, 1),
    "RNNsearch, gru_cho": (1800, 1, 32, 1),
    "Transformer, 4 + 4": (600, 1, 75, 1),
    "language model, 2 × LSTM": (350, 1, None, None),
}
pytestmark = pytest.mark.skipif(
    pretended_gpu.reason_unavailable() is not None or torch.cuda.is_available(),
    reason="there is a real GPU, or none can be simulated",
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module scripts/count_launches.py, in a directory with its data: fewer sentences, which changes no count."""
    path = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        patch.chdir(tmp_path_factory.mktemp("launches"))
        import count_launches

        patch.setattr(count_launches, "COMMON", count_launches.COMMON.replace("batch_size=64", "batch_size=4"))
        patch.setattr(count_launches, "SENTENCES", 320)
        patch.setattr(count_launches, "DECODED", 2)
        count_launches.write_data()
        yield count_launches
    sys.path[:] = path


@pytest.mark.parametrize("family", LIMITS)
def test_an_update_and_a_step_start_few_kernels_and_wait_once(script: Any, family: str) -> None:
    counts = script.count(family, "fp32")
    update, step = counts["update"], counts.get("step", {})
    launches, waits, step_launches, step_waits = LIMITS[family]
    assert launches / 4 < update["launches"] <= launches and update["waits"] == waits
    if step_launches is not None:
        assert step_launches / 2 < step["launches"] <= step_launches and step["waits"] == step_waits


def test_half_precision_starts_at_most_1_3_times_as_many(script: Any) -> None:
    """555 kernels in single precision."""
    assert 400 < script.count("Transformer, 4 + 4", "bf16", decodes=False)["update"]["launches"] <= 1.3 * 555


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_highest_sums_come_from_a_gpu_as_they_are(dtype: torch.dtype) -> None:
    """Numbers and indices, of rows with −∞ and more columns than a CPU sorts at once; single precision in one copy."""
    scores = torch.randn(3, 40_000, dtype=dtype)
    scores[1, 7:] = -torch.inf
    zeros = torch.zeros(3, 1, dtype=dtype)
    expected = highest_sums(scores, zeros, 10)
    with pretended_gpu.simulate_gpu() as gpu:
        on_gpu = highest_sums(scores.to("cuda"), zeros.to("cuda"), 10)
        waits = gpu.counts()["waits"]
        values, index = on_cpu(*on_gpu)
        assert gpu.counts()["waits"] - waits == (1 if dtype == torch.float32 else 2)
    assert torch.equal(values, expected[0]) and index.dtype == torch.int64
    is_finite = values > -torch.inf  # the order of equal scores is free
    assert torch.equal(index[is_finite], expected[1][is_finite])


@dataclass
class Numbers:
    """A state that selects its rows itself."""

    x: torch.Tensor

    def select(self, rows: torch.Tensor) -> "Numbers":
        return Numbers(self.x.index_select(0, rows))


def test_a_state_gets_the_rows_to_select_on_its_device() -> None:
    with pretended_gpu.simulate_gpu():
        state = (Numbers(torch.arange(3.0, device="cuda")), torch.arange(3, device="cuda"))
        selected, numbers = tree.keep(state, torch.tensor([2, 0]), 3)
        assert selected.x.tolist() == numbers.tolist() == [2, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_adds_a_product_in_half_precision_by_one_kernel(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    addend, x, matrix = (torch.randn(shape, generator=generator) for shape in ((5, 7), (5, 6), (6, 7)))
    expected = addend + (x.to(dtype).float() @ matrix.to(dtype).float())
    with pretended_gpu.simulate_gpu() as gpu:
        operands = addend.to("cuda"), x.to("cuda", dtype), matrix.to("cuda", dtype)
        assert adds_to_single(operands[0].device, dtype)  # tried once
        before = gpu.counts()["launches"]
        out = torch.empty_like(operands[0])
        add_product(*operands, out=out)
        assert gpu.counts()["launches"] == before + 1
        torch.testing.assert_close(out.cpu(), expected)
        torch.testing.assert_close(add_product(operands[0][0], *operands[1:]).cpu(), expected - addend + addend[0])


def test_without_memory_training_ends_with_a_sentence(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory ends at twenty places, each at another kind of operation, in updates and validations."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "valid"):
        Path(f"{name}.tsv").write_text("a b c\tc b a\na b\tb a\nb c\tc b\nc a\ta c\n")
    settings = f"{script.FAMILIES['RNNsearch, gru']} {script.COMMON} train.steps=2 train.validate_every=1".split()
    with pretended_gpu.simulate_gpu() as gpu:
        assert cli.run(["train", *settings, "run=whole"], config_directory()) == 0
        operations = dict(gpu.operations)
    draw = random.Random(1)
    for name in draw.sample(sorted(operations), 20):
        with pretended_gpu.simulate_gpu() as gpu:
            gpu.memory_ends_at = (name, draw.randint(1, operations[name]))
            place = f"{gpu.memory_ends_at}"
            capsys.readouterr()
            assert cli.run(["train", *settings, f"run={name}"], config_directory()) == 2, place
            assert gpu.memory_ends_at is None
        (message,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("seqtool: "))
        assert message.startswith("seqtool: Out of memory") and ": " in message[10:], place
        advices = ": lower ", ": start a run with a lower ", ": use shorter validation examples"
        assert any(advice in message for advice in advices), place
