"""The loss against torch's own, what must not enter it, and hard attention's gradient against enumeration."""

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


@pytest.mark.parametrize("way", [cross_entropy, cross_entropy_in_pieces])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_torchs(smoothing: float, way: Callable[..., CrossEntropy]) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7), torch.randint(1, 7, (3, 5))
    labels[1, 3:] = 0
    loss = way(logits, identity(7), labels, smoothing)
    flat, targets = logits.flatten(0, 1), labels.flatten()
    expected = F.cross_entropy(flat, targets, ignore_index=0, reduction="sum", label_smoothing=smoothing)
    assert loss.total.item() == pytest.approx(float(expected), rel=1e-5)
    plain = F.cross_entropy(flat, targets, ignore_index=0, reduction="none").view_as(labels)
    assert torch.allclose(loss.nll, plain)


def test_under_autocast_products_alone_are_rounded() -> None:
    """The gradient of the bias is a sum over rows, in single precision."""
    torch.manual_seed(0)
    linear, x, labels = nn.Linear(16, 7), torch.randn(8, 40, 16), torch.randint(1, 7, (8, 40))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cross_entropy_in_pieces(x, linear, labels, 0.0).total.backward()
    weight, bias = (one.detach().bfloat16() for one in (linear.weight, linear.bias))
    p = (x.flatten(0, 1).bfloat16() @ weight.t()).add_(bias).float().softmax(-1)
    assert linear.bias.grad is not None
    assert torch.allclose(linear.bias.grad, (p - F.one_hot(labels.flatten(), 7)).sum(0), atol=1e-4)


def identity(size: int) -> nn.Linear:
    """A projection that returns its features as logits."""
    linear = nn.Linear(size, size).requires_grad_(False)
    linear.load_state_dict({"weight": torch.eye(size), "bias": torch.zeros(size)})
    return linear


def test_a_batchs_loss_is_the_sum_of_its_sentences() -> None:
    """Padding of the longer mates adds nothing."""
    loss = TrainingLoss(make_model("bahdanau-gru"), 0.1)
    sources, targets = random_sentences(6, seed=1), random_sentences(6, seed=2)

    def batch(rows: list[int]) -> Batch:
        source = make_source([sources[i] for i in rows])
        target = make_target([targets[i] for i in rows])
        return Batch(source, target, np.array(rows), sum(len(targets[i]) + 1 for i in rows))

    with torch.no_grad():
        together = loss(batch(list(range(6))))
        apart = [loss(batch([i])) for i in range(6)]
    assert float(together.total) == pytest.approx(sum(float(one.total) for one in apart), rel=1e-5)
    assert float(together.nll) == pytest.approx(sum(float(one.nll) for one in apart), rel=1e-5)


class Given(nn.Module):
    """A stand-in for a model whose output is known."""

    def __init__(self, output: Output, penalties: Penalties) -> None:
        super().__init__()
        self.given = output
        self.penalties = penalties
        self.output = identity(output.features.shape[-1])

    def forward(self, source: Any, target: Any, state: Any = None) -> Output:
        return self.given

    parts, project, loss = PLAIN, EncoderDecoder.project, EncoderDecoder.loss


def given_rows(rows: int, steps: int, labels: Tensor, penalties: Penalties, **sampled: Any) -> tuple[Any, Batch]:
    """A loss over random logits and attention, N = `rows`."""
    torch.manual_seed(3)
    logits = torch.randn(rows, steps, 7)
    alpha = torch.randn(rows, steps, 4).softmax(-1)
    output = Output(logits, alpha, None, sampled=DrawnLocations(**sampled) if sampled else None)
    target = torch.cat([torch.full((len(labels), 1), 1), labels], 1)
    batch = Batch(Annotations(torch.zeros(0, 0, 0)), target, np.arange(len(labels)), int((labels != 0).sum()))
    return TrainingLoss(Given(output, penalties), 0.0), batch  # type: ignore[arg-type]


def test_doubly_stochastic_penalty_by_hand() -> None:
    """λ Σ_i (1 − Σ_t α_ti)², over real steps alone."""
    labels = torch.tensor([[5, 6, 2], [4, 2, 0]])
    plain, batch = given_rows(2, 3, labels, Penalties())
    loss, _ = given_rows(2, 3, labels, Penalties(doubly_stochastic=2.0))
    alpha = loss.model.given.attention
    expected = 0.0
    for row, steps in enumerate([3, 2]):
        for i in range(4):
            expected += 2.0 * (1 - sum(float(alpha[row, t, i]) for t in range(steps))) ** 2
    assert float(loss(batch).total - plain(batch).total) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(loss(batch).nll, plain(batch).nll) and loss(batch).reward is None


@pytest.mark.parametrize("baseline", ["moving_average", "leave_one_out", "none"])
def test_hard_attentions_loss_by_hand(baseline: str) -> None:
    """Two images, the second takes the expected context, the first draws twice; a padded step counts nowhere."""
    labels = torch.tensor([[5, 2, 0], [4, 3, 2]])
    penalties = Penalties(doubly_stochastic=0.0, reward=0.5, entropy=0.1, baseline=baseline)
    log_p = torch.tensor([[-1.0, -2.0, -50.0], [-0.5, -0.25, -70.0]])
    entropy = torch.tensor([[1.0, 0.5, 30.0], [0.75, 0.25, 40.0]])
    image = torch.tensor([1, 0, 0])
    rows = {"image": image, "expected_rows": 1, "samples": 2, "log_probability": log_p, "entropy": entropy}
    loss, batch = given_rows(3, 3, labels, penalties, **rows)
    loss.baseline.fill_(-3.0)
    nll = F.cross_entropy(
        loss.model.given.features.flatten(0, 1), labels[image].flatten(), ignore_index=0, reduction="none"
    )
    R = -nll.view(3, 3).sum(1)  # noqa: N806
    b = {"moving_average": [-3.0, -3.0], "leave_one_out": [float(R[2]), float(R[1])], "none": [0.0, 0.0]}[baseline]
    first = -R[1] - 0.5 * (R[1] - b[0]) * -3.0 - 0.1 * 1.5
    second = -R[2] - 0.5 * (R[2] - b[1]) * -0.75 - 0.1 * 1.0
    made = loss(batch)
    assert float(made.total) == pytest.approx(float(-R[0] + (first + second) / 2), rel=1e-5)
    assert float(made.nll) == pytest.approx(float(-R[0] - (R[1] + R[2]) / 2), rel=1e-5)
    assert made.reward is not None and float(made.reward) == pytest.approx(float(R[1:].mean()), rel=1e-5)


def test_the_baseline_starts_at_the_first_reward_and_moves() -> None:
    loss, _ = given_rows(1, 1, torch.tensor([[2]]), Penalties(decay=0.9))
    assert bool(loss.baseline.isnan()) and "baseline" in loss.state_dict()
    for reward, expected in [(math.nan, math.nan), (-10.0, -10.0), (-20.0, -11.0), (-math.inf, -11.0), (-1.0, -10.0)]:
        loss.observe(torch.tensor(reward))
        assert float(loss.baseline) == pytest.approx(expected, nan_ok=True)


def test_a_first_batchs_baseline_is_its_own_mean() -> None:
    labels, log_p = torch.tensor([[5, 2], [4, 2]]), torch.tensor([[-1.0, -2.0], [-3.0, -0.5]])
    rows = {"image": torch.arange(2), "expected_rows": 0, "samples": 1}
    sampled = {"log_probability": log_p, "entropy": torch.zeros(2, 2)}
    loss, batch = given_rows(2, 2, labels, Penalties(reward=1.0), **rows, **sampled)
    first = loss(batch)
    assert bool(loss.baseline.isnan()), "the loss itself moves nothing"
    loss.baseline.copy_(first.reward)
    assert torch.equal(loss(batch).total, first.total)


def test_a_batch_without_a_draw_has_no_reward() -> None:
    rows = {"image": torch.arange(2), "expected_rows": 2, "samples": 3}
    sampled = {"log_probability": torch.zeros(0, 2), "entropy": torch.zeros(0, 2)}
    penalties = Penalties(reward=1.0, entropy=1.0, doubly_stochastic=0.0)
    loss, batch = given_rows(2, 2, torch.tensor([[5, 2], [4, 2]]), penalties, **rows, **sampled)
    made = loss(batch)
    assert made.reward is not None and bool(made.reward.isnan()) and torch.equal(made.total, made.nll)


@pytest.mark.parametrize("name", ["show_attend_tell-soft", "show_attend_tell-hard", "show_tell-every_step"])
def test_padded_steps_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither −log p nor any penalty, whatever stands behind a caption's end."""
    model = make_captioner(name).train()
    loss = TrainingLoss(model, 0.1)
    target = make_target(random_sentences(4, seed=5))
    images = random_images(4, seed=6)
    chances = torch.rand(12, target.shape[1] + 4)
    monkeypatch.setattr(
        torch, "rand", lambda *shape, **_: chances[:, : shape[1]] if len(shape) == 2 else torch.zeros(shape)
    )
    wider = torch.cat([target, torch.zeros(4, 4, dtype=torch.int64)], 1)
    with torch.no_grad():
        narrow, wide = (loss(Batch(images, one, np.arange(4), 0)) for one in (target, wider))
    assert float(narrow.total) == pytest.approx(float(wide.total), rel=1e-5)
    assert float(narrow.nll) == pytest.approx(float(wide.nll), rel=1e-5)


def farthest(exact: Tensor, estimates: Tensor) -> float:
    """How many standard errors the worst coordinate's mean is off; infinite where one that never varies is off."""
    error = estimates.std(0) / len(estimates) ** 0.5
    away = (estimates.mean(0) - exact).abs()
    varies = error > 1e-12
    return float(max((away[varies] / error[varies]).max(), math.inf if (away[~varies] > 1e-9).any() else 0.0))


@pytest.mark.parametrize(
    ("baseline", "credit"),
    [("moving_average", "caption"), ("leave_one_out", "caption"), ("leave_one_out", "future"), ("none", "caption")],
)
def test_hard_attentions_gradient_is_the_enumerated_one_on_average(baseline: str, credit: str) -> None:
    """20,000 samples, in 200 means of 100: each coordinate within 4 standard errors. With the term's sign turned
    round, or without the term, it is not so.
    """
    case = Enumerable.make(samples=100, baseline=baseline, credit=credit)
    exact = case.exact()
    torch.manual_seed(12)
    estimates = case.estimates(200, baseline=-2.0)
    assert int((estimates.std(0) > 1e-6).sum()) > 60, "coordinates that vary"
    assert farthest(exact, estimates) < 4
    for wrong in (-1.0, 0.0):
        case.model.penalties = replace(case.model.penalties, reward=wrong)
        torch.manual_seed(12)
        assert farthest(exact, case.estimates(60, baseline=-2.0)) > 8


def test_the_baseline_and_more_samples_lower_the_variance() -> None:
    """The variance of the gradient's estimate, summed over its coordinates."""
    torch.manual_seed(13)
    one, many = (Enumerable.make(samples=samples) for samples in (1, 8))
    with torch.no_grad():
        reward = TrainingLoss(Enumerable.make(samples=1000).model, 0.0)(many.batch).reward
    assert reward is not None
    variance = {
        "M = 1, no baseline": one.estimates(250, baseline=0.0),
        "M = 1, baseline": one.estimates(250, baseline=float(reward)),
        "M = 8, baseline": many.estimates(250, baseline=float(reward)),
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
