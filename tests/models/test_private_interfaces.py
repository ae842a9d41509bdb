"""What the package uses of other libraries without a promise that it stays: one that changes is named here."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from torch import Tensor, nn

from seqtool.models.fast import private

PACKAGE = Path(__file__).parents[2] / "seqtool"
PRIVATE = ("torch.ops", "torch._C", "torch._VF", "torch.lstm", "torch.gru", "torch.rnn_tanh")


def test_no_other_file_uses_what_torch_does_not_document() -> None:
    for path in PACKAGE.rglob("*.py"):
        used = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if is_attribute(node)}
        private_uses = {name for name in used if name.startswith(PRIVATE)}
        assert not private_uses or path.name == "private.py", f"{path} uses {', '.join(sorted(private_uses))}"


def is_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute)


def gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of its squares' sum halved, whose upstream is the output."""
    x = x.clone().requires_grad_()
    y = function(x)  # type: ignore[operator]
    return y.detach(), torch.autograd.grad(y, x, y.detach())[0]


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_gradients_of_activations(name: str) -> None:
    x = torch.randn(3, 4)
    y, expected = gradient(getattr(torch, name), x)
    written = torch.empty(6, 4)[:3]
    getattr(private, f"through_{name}")(y, y, grad_input=written)
    torch.testing.assert_close(written, expected)
    if name == "tanh":
        torch.testing.assert_close(private.tanh_backward(y, y), expected)


def test_gradient_of_a_softmax() -> None:
    y, expected = gradient(lambda x: x.softmax(-1), torch.randn(3, 4))
    torch.testing.assert_close(private.through_softmax(y, y, -1, y.dtype), expected)


def test_the_number_of_a_backward_pass() -> None:
    """The same within one, another in the next, and −1 outside."""
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(private.backward_pass()))
    x.register_hook(lambda _: seen.append(private.backward_pass()))
    assert private.backward_pass() == -1
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert seen[0] == seen[1] >= 0 and seen[2] == seen[3] != seen[0]


@pytest.mark.skipif(not private.supports_packed(torch.float32), reason="torch has no oneDNN here")
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products(bias: bool) -> None:
    linear, x = nn.Linear(5, 7, bias=bias), torch.randn(2, 3, 5)
    matrix = private.pack(linear.weight.detach(), 64)
    torch.testing.assert_close(matrix.to_dense(), linear.weight.detach())
    found = private.packed_linear(x, matrix, linear.bias if linear.bias is None else linear.bias.detach())
    torch.testing.assert_close(found, linear(x).detach())


@pytest.mark.parametrize(("name", "module"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn_tanh", nn.RNN)])
def test_whole_sequences(name: str, module: type[nn.RNNBase]) -> None:
    rnn, x = module(3, 4, batch_first=True), torch.randn(2, 5, 3)
    zero = torch.zeros(1, 2, 4)
    weights = [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0]
    first = (zero, zero) if name == "lstm" else zero
    h, *_ = getattr(private, name)(x, first, weights, True, 1, 0.0, False, False, True)
    torch.testing.assert_close(h, rnn(x)[0])


def test_a_step_of_an_lstm() -> None:
    cell, x, state = nn.LSTMCell(3, 4), torch.randn(2, 3), (torch.randn(2, 4), torch.randn(2, 4))
    found = private.lstm_cell(x, state, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(found, cell(x, state))


@pytest.mark.parametrize("metric", [BLEU, CHRF, TER])
def test_sacrebleu_scores_sums_of_statistics(metric: type[Metric]) -> None:
    """Those by segment, which `metrics/translation.py` resamples, sum up to the score of the corpus."""
    hypotheses, references = ["the red house is old", "a cat", "no"], [["the red house", "the cat sat", "no"]]
    statistics = metric()._extract_corpus_statistics(hypotheses, references)
    assert len(statistics) == 3
    score = metric()._compute_score_from_stats(np.array(statistics).sum(0).tolist()).score
    assert score == pytest.approx(metric().corpus_score(hypotheses, references).score)
