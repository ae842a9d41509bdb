"""Tests of undocumented interfaces of other libraries that the package uses: a change of one fails here."""

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
PRIVATE_PREFIXES = ("torch.ops", "torch._C", "torch._VF", "torch.lstm", "torch.gru", "torch.rnn_tanh")


def test_no_other_file_uses_undocumented_parts_of_torch() -> None:
    for path in PACKAGE.rglob("*.py"):
        used = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if is_attribute(node)}
        private_uses = {name for name in used if name.startswith(PRIVATE_PREFIXES)}
        assert not private_uses or path.name == "private.py", f"{path} uses {', '.join(sorted(private_uses))}"


def is_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute)


def gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output, and the gradient of half the sum of its squares, whose upstream gradient is the output."""
    x = x.clone().requires_grad_()
    y = function(x)  # type: ignore[operator]
    return y.detach(), torch.autograd.grad(y, x, y.detach())[0]


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_gradients_of_activations_match_autograd(name: str) -> None:
    x = torch.randn(3, 4)
    y, expected = gradient(getattr(torch, name), x)
    actual = torch.empty(6, 4)[:3]
    getattr(private, f"through_{name}")(y, y, grad_input=actual)
    torch.testing.assert_close(actual, expected)
    if name == "tanh":
        torch.testing.assert_close(private.tanh_backward(y, y), expected)


def test_the_gradient_of_a_softmax_matches_autograd() -> None:
    y, expected = gradient(lambda x: x.softmax(-1), torch.randn(3, 4))
    torch.testing.assert_close(private.through_softmax(y, y, -1, y.dtype), expected)


def test_each_backward_pass_has_a_number() -> None:
    """The number is the same within a pass, different in the next one, and −1 outside."""
    numbers = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: numbers.append(private.backward_pass()))
    x.register_hook(lambda _: numbers.append(private.backward_pass()))
    assert private.backward_pass() == -1
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert numbers[0] == numbers[1] >= 0 and numbers[2] == numbers[3] != numbers[0]


@pytest.mark.skipif(not private.supports_packed(torch.float32), reason="torch has no oneDNN here")
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_equal_linear_maps(bias: bool) -> None:
    linear, x = nn.Linear(5, 7, bias=bias), torch.randn(2, 3, 5)
    matrix = private.pack(linear.weight.detach())
    torch.testing.assert_close(matrix.to_dense(), linear.weight.detach())
    b = linear.bias if linear.bias is None else linear.bias.detach()
    torch.testing.assert_close(private.packed_linear(x, matrix, b), linear(x).detach())
    total = torch.randn(2, 3, 7)
    torch.testing.assert_close(private.packed_linear_add(x, matrix, b, total), total + linear(x).detach())


@pytest.mark.parametrize(("name", "module"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn_tanh", nn.RNN)])
def test_whole_sequences_equal_those_of_torch(name: str, module: type[nn.RNNBase]) -> None:
    rnn, x = module(3, 4, batch_first=True), torch.randn(2, 5, 3)
    zero = torch.zeros(1, 2, 4)
    weights = [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0]
    first = (zero, zero) if name == "lstm" else zero
    h, *_ = getattr(private, name)(x, first, weights, True, 1, 0.0, False, False, True)
    torch.testing.assert_close(h, rnn(x)[0])


def test_a_step_of_an_lstm_equals_that_of_torch() -> None:
    cell, x, state = nn.LSTMCell(3, 4), torch.randn(2, 3), (torch.randn(2, 4), torch.randn(2, 4))
    actual = private.lstm_cell(x, state, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(actual, cell(x, state))


@pytest.mark.parametrize("metric", [BLEU, CHRF, TER])
def test_sacrebleu_scores_sums_of_statistics(metric: type[Metric]) -> None:
    """Statistics of segments, which `metrics/translation.py` resamples, add up to the score of the corpus."""
    hypotheses, references = ["the red house is old", "a cat", "no"], [["the red house", "the cat sat", "no"]]
    statistics = metric()._extract_corpus_statistics(hypotheses, references)
    assert len(statistics) == 3
    score = metric()._compute_score_from_stats(np.array(statistics).sum(0).tolist()).score
    assert score == pytest.approx(metric().corpus_score(hypotheses, references).score)
