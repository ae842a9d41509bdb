"""Tests of linear maps in 8-bit integers and of `precision=int8`."""

from pathlib import Path

import pytest
import torch
from small_models import copy_with_fast_parts, make_model, random_sentences
from torch import nn

from seqtool.cli.main import config_directory, run
from seqtool.data.batches import make_source, make_target
from seqtool.decoding.common import force
from seqtool.errors import InputError
from seqtool.models.fast import quantised
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.packed import PackedLinear, linear_relu
from seqtool.models.fast.quantised import QuantisedLinear, quantise
from seqtool.runtime.precision import check_precision, multiplies_int8

CPU = torch.device("cpu")


@pytest.fixture
def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(96, 70)


@pytest.fixture
def rows() -> torch.Tensor:
    """Rows of very different sizes, one of them zero."""
    return torch.randn(6, 96, generator=torch.Generator().manual_seed(2)) * torch.tensor(
        [[1], [1e-3], [50], [0], [1], [9]]
    )


def test_integers_are_the_closest_ones(rows: torch.Tensor) -> None:
    scale, integers = quantise(rows)
    assert integers.dtype == torch.int8
    assert integers.abs().amax(1).tolist() == [127, 127, 127, 0, 127, 127]
    assert torch.all((rows - integers * scale).abs() <= scale * 0.5001)


@torch.no_grad()
def test_products_are_exact_and_do_not_depend_on_the_batch(linear: nn.Linear, rows: torch.Tensor) -> None:
    module = QuantisedLinear(linear)
    integers = quantise(rows)[1]
    exact = integers.long() @ module.integers.long().T
    assert torch.equal(module.products(integers), exact.float() * module.scale)
    together = module(rows.view(2, 3, 96))
    for i, row in enumerate(rows):
        assert torch.equal(quantise(row[None])[1][0], integers[i])
        assert torch.equal(module(row), together.flatten(0, 1)[i])


def test_it_takes_empty_inputs_and_needs_no_context(linear: nn.Linear, rows: torch.Tensor) -> None:
    module = QuantisedLinear(linear)
    for shape in ((0, 96), (0, 3, 96), (3, 0, 96)):
        assert module(torch.empty(shape)).shape == (*shape[:-1], 70)
    assert not module(rows.requires_grad_()).requires_grad


@torch.no_grad()
def test_the_error_is_that_of_rounding(linear: nn.Linear, rows: torch.Tensor) -> None:
    """|x w − x' w'| ≤ Σ (|x| δw + |w| δx + δx δw), where δ is half a scale."""
    module, exact = QuantisedLinear(linear), linear(rows)
    dx, dw = quantise(rows)[0] / 2, quantise(linear.weight)[0].T / 2
    bound = rows.abs().sum(1, keepdim=True) * dw + linear.weight.abs().sum(1) * dx + 96 * dx * dw
    assert torch.all((module(rows) - exact).abs() <= bound + 1e-5)
    assert torch.equal(module(rows[3:4])[0], linear.bias)
    assert torch.equal(linear_relu(module, rows), module(rows).relu())
    torch.testing.assert_close(module.weight, linear.weight, rtol=0, atol=float(dw.max()) * 1.001)


@torch.no_grad()
def test_wide_maps_give_the_same_numbers(
    linear: nn.Linear, rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN's linear map and torch's product of integers, where the processor has instructions for either."""
    if not multiplies_int8():
        pytest.skip("without instructions for 8-bit integers, oneDNN adds pairs of products in 16 bits")
    narrow = QuantisedLinear(linear)
    monkeypatch.setattr(quantised, "WIDE", 1)
    wide = QuantisedLinear(linear)
    assert narrow.packed is None and wide.packed is not None
    assert torch.equal(wide(rows), narrow(rows))


FAMILIES = ["sutskever-lstm", "bahdanau-gru", "bahdanau-gru_cho", "luong", "transformer", "transformer-post"]


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_models_predict_nearly_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "LEAST_WEIGHTS", 0)
    source, target = make_source(random_sentences(4, seed=1)), make_target(random_sentences(4, seed=2))
    model = copy_with_fast_parts(make_model(family, scale=1.0).eval())
    results = {}
    for precision in ("fp32", "int8"):
        decoder = optimise_for_decoding(model, precision, CPU)
        kinds = {type(module) for module in decoder.modules()}
        assert (QuantisedLinear in kinds) == (precision == "int8") and nn.Linear not in kinds - {PackedLinear}
        results[precision] = torch.cat([h.log_p for h in force(decoder.step, *decoder.encode(source), target)])
    difference = (results["int8"] - results["fp32"]).abs()
    assert 0 < difference.max() < 0.15


@pytest.mark.parametrize(
    ("device", "training", "message"),
    [
        ("cpu", True, "precision=int8 is for decoding with a trained model"),
        ("cuda", False, "precision=int8 needs a CPU"),
        ("cpu", False, "precision=int8 needs a processor with instructions for it"),
    ],
)
def test_where_it_is_not_offered_a_sentence_says_so(
    device: str, training: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtool.runtime.precision.multiplies_int8", lambda: False)
    with pytest.raises(InputError, match=message):
        check_precision(torch.device(device), "int8", training=training)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx2 avx512f", False), ("avx2 avx_vnni sse", True), ("avx512_vnni", True), ("amx_int8", True)],
)
def test_processors_are_known_by_their_flags(flags: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor : 0\nflags\t\t: {flags}\n")
    assert multiplies_int8.__wrapped__() == expected
    assert check_precision(CPU, "fp32") is None


def test_translations_in_int8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The built-in model translates the same sentence in any batch."""
    monkeypatch.setattr("seqtool.runtime.precision.multiplies_int8", lambda: True)
    monkeypatch.setattr(quantised, "WIDE", 1 << 30)
    sentences = ["we eat bread .", "the small dog sleeps .", "she reads the red book ."]
    (tmp_path / "input").write_text("\n".join(sentences) + "\n")
    outputs = []
    for batch_size in (1, 3):
        arguments = ["translate", "checkpoint=builtin/words", f"input={tmp_path}/input", "precision=int8"]
        line = [*arguments, f"output={tmp_path}/output", f"batch_size={batch_size}", "device=cpu"]
        assert run(line, config_directory()) == 0
        outputs.append((tmp_path / "output").read_text())
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 3


def test_the_demo_refuses_a_precision_before_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "port=0", "precision=fp16", "device=cpu"], config_directory()) == 2
    printed = capsys.readouterr()
    assert "Open" not in printed.out and printed.err.startswith("seqtool: precision=fp16 needs a GPU; on a CPU use ")
