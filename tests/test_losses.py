"""Tests of losses: they equal torch's, ignore padding, and for hard attention have the enumerated gradient."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from enumeration import Enumerable
from small_models import (
    make_captioner,
    make_model,
    random_images,
    random_sentences,
)
from torch import Tensor, nn
from torch.nn import functional as F

from seqtool.data.batches import Batch, make_source, make_target
from seqtool.models.contract import EncoderDecoder, Output
from seqtool.models.fast.cross_entropy_in_pieces import cross_entropy_in_pieces
from seqtool.models.hard_attention import DrawnLocations, Penalties
from seqtool.models.inputs import Annotations
from seqtool.models.parts import PLAIN, CrossEntropy, cross_entropy
from seqtool.training.losses import TrainingLoss


@pytest.mark.parametrize("loss_function", [cross_entropy, cross_entropy_in_pieces])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_that_of_torch(smoothing: float, loss_function: Callable[..., CrossEntropy]) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7), torch.randint(1, 7, (3, 5))
    labels[1, 3:] = 0
    loss = loss_function(logits, identity(7), labels, smoothing)
    flat, targets = logits.flatten(0, 1), labels.flatten()
    expected = F.cross_entropy(flat, targets, ignore_index=0, reduction="sum", label_smoothing=smoothing)
    assert loss.total.item() == pytest.approx(float(expected), rel=1e-5)
    expected_nll = F.cross_entropy(flat, targets, ignore_index=0, reduction="none").view_as(labels)
    assert torch.allclose(loss.nll, expected_nll)


def test_autocast_rounds_only_matrix_products() -> None:
    """The gradient of the bias is a sum over rows, in single precision."""
    torch.manual_seed(0)
    linear, x, labels = nn.Linear(16, 7), torch.randn(8, 40, 16), torch.randint(1, 7, (8, 40))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cross_entropy_in_pieces(x, linear, labels, 0.0).total.backward()
    weight, bias = (parameter.detach().bfloat16() for parameter in (linear.weight, linear.bias))
    probabilities = (x.flatten(0, 1).bfloat16() @ weight.t()).add_(bias).float().softmax(-1)
    assert linear.bias.grad is not None
    assert torch.allclose(linear.bias.grad, (probabilities - F.one_hot(labels.flatten(), 7)).sum(0), atol=1e-4)


def identity(size: int) -> nn.Linear:
    """Return a projection that passes its features on as logits."""
    linear = nn.Linear(size, size).requires_grad_(False)
    linear.load_state_dict({"weight": torch.eye(size), "bias": torch.zeros(size)})
    return linear


def test_the_loss_of_a_batch_is_the_sum_over_its_sentences() -> None:
    """The padding of the shorter sentences adds nothing."""
    loss = TrainingLoss(make_model("bahdanau-gru"), 0.1)
    sources, targets = random_sentences(6, seed=1), random_sentences(6, seed=2)

    def batch(rows: list[int]) -> Batch:
        source = make_source([sources[i] for i in rows])
        target = make_target([targets[i] for i in rows])
        return Batch(source, target, np.array(rows), sum(len(targets[i]) + 1 for i in rows))

    with torch.no_grad():
        together = loss(batch(list(range(6))))
        separate = [loss(batch([i])) for i in range(6)]
    assert float(together.total) == pytest.approx(sum(float(part.total) for part in separate), rel=1e-5)
    assert float(together.nll) == pytest.approx(sum(float(part.nll) for part in separate), rel=1e-5)


class FixedOutput(nn.Module):
    """A stand-in for a model: it always returns the output that it was constructed with."""

    def __init__(self, output: Output, penalties: Penalties) -> None:
        super().__init__()
        self.fixed_output = output
        self.penalties = penalties
        self.output = identity(output.features.shape[-1])

    def forward(self, source: Any, target: Any, state: Any = None) -> Output:
        return self.fixed_output

    parts, project, loss = PLAIN, EncoderDecoder.project, EncoderDecoder.loss


def make_loss(rows: int, steps: int, labels: Tensor, penalties: Penalties, **sampled: Any) -> tuple[Any, Batch]:
    """Return a loss of N = `rows` random logits and attention weights, and a batch with these labels."""
    torch.manual_seed(3)
    logits = torch.randn(rows, steps, 7)
    alpha = torch.randn(rows, steps, 4).softmax(-1)
    output = Output(logits, alpha, None, sampled=DrawnLocations(**sampled) if sampled else None)
    target = torch.cat([torch.full((len(labels), 1), 1), labels], 1)
    batch = Batch(Annotations(torch.zeros(0, 0, 0)), target, np.arange(len(labels)), int((labels != 0).sum()))
    return TrainingLoss(FixedOutput(output, penalties), 0.0), batch  # type: ignore[arg-type]


def test_the_doubly_stochastic_penalty_equals_its_formula() -> None:
    """The penalty is λ Σ_i (1 − Σ_t α_ti)², with t over the steps before padding."""
    labels = torch.tensor([[5, 6, 2], [4, 2, 0]])
    plain, batch = make_loss(2, 3, labels, Penalties())
    loss, _ = make_loss(2, 3, labels, Penalties(doubly_stochastic=2.0))
    alpha = loss.model.fixed_output.attention
    expected = 0.0
    for row, steps in enumerate([3, 2]):
        for i in range(4):
            expected += 2.0 * (1 - sum(float(alpha[row, t, i]) for t in range(steps))) ** 2
    assert float(loss(batch).total - plain(batch).total) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(loss(batch).nll, plain(batch).nll) and loss(batch).reward is None


@pytest.mark.parametrize("baseline", ["moving_average", "leave_one_out", "none"])
def test_the_loss_of_hard_attention_equals_its_formula(baseline: str) -> None:
    """Of two images, the second takes the expected context, and the first is sampled twice. Padding counts nowhere."""
    labels = torch.tensor([[5, 2, 0], [4, 3, 2]])
    penalties = Penalties(doubly_stochastic=0.0, reward=0.5, entropy=0.1, baseline=baseline)
    log_p = torch.tensor([[-1.0, -2.0, -50.0], [-0.5, -0.25, -70.0]])
    entropy = torch.tensor([[1.0, 0.5, 30.0], [0.75, 0.25, 40.0]])
    image = torch.tensor([1, 0, 0])
    rows = {"image": image, "expected_rows": 1, "samples": 2, "log_probability": log_p, "entropy": entropy}
    loss, batch = make_loss(3, 3, labels, penalties, **rows)
    loss.baseline.fill_(-3.0)
    nll = F.cross_entropy(
        loss.model.fixed_output.features.flatten(0, 1), labels[image].flatten(), ignore_index=0, reduction="none"
    )
    R = -nll.view(3, 3).sum(1)  # noqa: N806
    b = {"moving_average": [-3.0, -3.0], "leave_one_out": [float(R[2]), float(R[1])], "none": [0.0, 0.0]}[baseline]
    first_draw = -R[1] - 0.5 * (R[1] - b[0]) * -3.0 - 0.1 * 1.5
    second_draw = -R[2] - 0.5 * (R[2] - b[1]) * -0.75 - 0.1 * 1.0
    result = loss(batch)
    assert float(result.total) == pytest.approx(float(-R[0] + (first_draw + second_draw) / 2), rel=1e-5)
    assert float(result.nll) == pytest.approx(float(-R[0] - (R[1] + R[2]) / 2), rel=1e-5)
    assert result.reward is not None and float(result.reward) == pytest.approx(float(R[1:].sum()), rel=1e-5)
    assert result.rewarded == 2


def test_the_baseline_starts_at_the_first_reward_and_moves() -> None:
    loss, _ = make_loss(1, 1, torch.tensor([[2]]), Penalties(decay=0.9))
    assert bool(loss.baseline.isnan()) and "baseline" in loss.state_dict()
    for reward, expected in [(math.nan, math.nan), (-10.0, -10.0), (-20.0, -11.0), (-math.inf, -11.0), (-1.0, -10.0)]:
        loss.observe(torch.tensor(reward))
        assert float(loss.baseline) == pytest.approx(expected, nan_ok=True)


def test_the_first_batch_takes_its_mean_reward_as_baseline() -> None:
    labels, log_p = torch.tensor([[5, 2], [4, 2]]), torch.tensor([[-1.0, -2.0], [-3.0, -0.5]])
    rows = {"image": torch.arange(2), "expected_rows": 0, "samples": 1}
    sampled = {"log_probability": log_p, "entropy": torch.zeros(2, 2)}
    loss, batch = make_loss(2, 2, labels, Penalties(reward=1.0), **rows, **sampled)
    first = loss(batch)
    assert bool(loss.baseline.isnan()), "computing a loss must not move the baseline"
    loss.baseline.copy_(first.reward / first.rewarded)
    assert torch.equal(loss(batch).total, first.total)


def test_a_batch_without_draws_has_no_reward() -> None:
    rows = {"image": torch.arange(2), "expected_rows": 2, "samples": 3}
    sampled = {"log_probability": torch.zeros(0, 2), "entropy": torch.zeros(0, 2)}
    penalties = Penalties(reward=1.0, entropy=1.0, doubly_stochastic=0.0)
    loss, batch = make_loss(2, 2, torch.tensor([[5, 2], [4, 2]]), penalties, **rows, **sampled)
    result = loss(batch)
    assert result.sums()[1:].tolist() == [0.0, 0.0] and torch.equal(result.total, result.nll)


@pytest.mark.parametrize("name", ["show_attend_tell-soft", "show_attend_tell-hard", "show_tell-every_step"])
def test_padded_steps_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding after a caption changes neither −log p nor any penalty."""
    model = make_captioner(name).train()
    loss = TrainingLoss(model, 0.1)
    target = make_target(random_sentences(4, seed=5))
    images = random_images(4, seed=6)
    noise = torch.rand(12, target.shape[1] + 4)
    monkeypatch.setattr(
        torch, "rand", lambda *shape, **_: noise[:, : shape[1]] if len(shape) == 2 else torch.zeros(shape)
    )
    wide_target = torch.cat([target, torch.zeros(4, 4, dtype=torch.int64)], 1)
    with torch.no_grad():
        narrow, wide = (loss(Batch(images, padded_target, np.arange(4), 0)) for padded_target in (target, wide_target))
    assert float(narrow.total) == pytest.approx(float(wide.total), rel=1e-5)
    assert float(narrow.nll) == pytest.approx(float(wide.nll), rel=1e-5)


def largest_error(exact: Tensor, estimates: Tensor) -> float:
    """Return by how many standard errors the mean of the worst coordinate is off, or infinity if a constant one is."""
    error = estimates.std(0) / len(estimates) ** 0.5
    deviation = (estimates.mean(0) - exact).abs()
    varies = error > 1e-12
    return float(max((deviation[varies] / error[varies]).max(), math.inf if (deviation[~varies] > 1e-9).any() else 0.0))


@pytest.mark.parametrize(
    ("baseline", "credit"),
    [("moving_average", "caption"), ("leave_one_out", "caption"), ("leave_one_out", "future"), ("none", "caption")],
)
def test_the_mean_gradient_of_hard_attention_is_the_enumerated_one(baseline: str, credit: str) -> None:
    """The mean gradient over 20,000 samples (200 means of 100) is within 4 standard errors of the exact gradient, for
    each coordinate. With the sign of the reward term reversed, or without the term, it is not.
    """
    case = Enumerable.make(samples=100, baseline=baseline, credit=credit)
    exact = case.exact()
    torch.manual_seed(12)
    estimates = case.estimates(200, baseline=-2.0)
    assert int((estimates.std(0) > 1e-6).sum()) > 60, "too few coordinates vary"
    assert largest_error(exact, estimates) < 4
    for wrong_reward in (-1.0, 0.0):
        case.model.penalties = replace(case.model.penalties, reward=wrong_reward)
        torch.manual_seed(12)
        assert largest_error(exact, case.estimates(60, baseline=-2.0)) > 8


def test_the_baseline_and_more_samples_lower_the_variance() -> None:
    """Compare the variances of gradient estimates, each summed over the coordinates."""
    torch.manual_seed(13)
    single, several = (Enumerable.make(samples=samples) for samples in (1, 8))
    with torch.no_grad():
        _, reward, rewarded = TrainingLoss(Enumerable.make(samples=1000).model, 0.0)(several.batch).sums()
    variance = {
        "M = 1, no baseline": single.estimates(250, baseline=0.0),
        "M = 1, baseline": single.estimates(250, baseline=float(reward / rewarded)),
        "M = 8, baseline": several.estimates(250, baseline=float(reward / rewarded)),
        "M = 8, leave one out": Enumerable.make(samples=8, baseline="leave_one_out").estimates(250, baseline=None),
        "M = 8, leave one out, credit for the future": Enumerable.make(
            samples=8, baseline="leave_one_out", credit="future"
        ).estimates(250, baseline=None),
    }
    spread = {name: float(estimates.var(0).sum()) for name, estimates in variance.items()}
    print(", ".join(f"{name}: {value:.3f}" for name, value in spread.items()))
    assert spread["M = 1, baseline"] < 0.7 * spread["M = 1, no baseline"]
    assert spread["M = 8, baseline"] < 0.2 * spread["M = 1, baseline"]
    assert spread["M = 8, leave one out"] < 0.2 * spread["M = 1, baseline"]
    assert spread["M = 8, leave one out, credit for the future"] < spread["M = 8, leave one out"]
