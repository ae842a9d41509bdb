"""Tests of `eval bound=`: the bound and the estimate of log p agree with enumeration."""

import itertools
import math

import pytest
import torch
from enumeration import Enumerable
from small_models import make_captioner, random_images, random_sentences
from torch import Tensor

from seqtool.data.batches import make_target
from seqtool.models.inputs import Annotations
from seqtool.predict.likelihood import caption_likelihoods

DRAWS = 3


def expected_estimate(case: Enumerable, samples: int) -> float:
    """Return E[log 1/K Σ_k p(y|s_k, a)], over all K draws."""
    log_p_s, log_p_y = (log_p.detach() for log_p in case.enumerated())
    draws = torch.tensor(list(itertools.product(range(27), repeat=samples)))
    estimates = log_p_y[draws].logsumexp(1) - math.log(samples)
    return float((log_p_s[draws].sum(1).exp() * estimates).sum())


def sample_likelihoods(case: Enumerable, samples: int, repeats: int) -> tuple[Tensor, Tensor]:
    """Return the bounds and the estimates of one caption, each drawn `repeats` times."""
    torch.manual_seed(5)
    caption = case.batch.target[0, 1:-1].tolist()
    a = case.batch.source.values.double().expand(repeats, -1, -1)
    noise = list(torch.rand(repeats, samples, 3, dtype=torch.float64))
    terms = list(caption_likelihoods(case.model.eval(), a, range(repeats), [caption] * repeats, noise.__getitem__))
    return tuple(torch.tensor([term[name] for term in terms]) for name in ("bound", "estimate"))


def test_the_estimate_rises_with_the_draws_from_the_bound_to_log_p() -> None:
    case = Enumerable.make()
    log_p_s, log_p_y = (term.detach() for term in case.enumerated())
    bound, log_p = float((log_p_s.exp() * log_p_y).sum()), float((log_p_s + log_p_y).logsumexp(0))
    exact = [expected_estimate(case, samples) for samples in range(1, DRAWS + 1)]
    assert exact[0] == pytest.approx(bound, abs=1e-12)
    assert bound - 1e-12 <= exact[0] < exact[1] < exact[2] < log_p
    for samples, mean in enumerate(exact, 1):
        bounds, estimates = sample_likelihoods(case, samples, 4000)
        for values, expected in ((bounds, bound), (estimates, mean)):
            assert abs(float(values.mean()) - expected) < 4 * float(values.std()) / len(values) ** 0.5


def test_soft_attention_gives_the_exact_log_p() -> None:
    """The log p is that of teacher forcing, whatever other captions are in the batch."""
    model, captions = make_captioner("show_attend_tell-soft"), random_sentences(40, seed=2)
    a = model.annotations(random_images(40, seed=1))
    together = [likelihood["log_p"] for likelihood in caption_likelihoods(model, a, range(40), captions, None)]
    for i, caption in enumerate(captions):
        target = make_target([caption])
        alone = model.project(model(Annotations(a[i : i + 1]), target[:, :-1]).features)
        gains = alone.log_softmax(-1)[0].gather(1, target[0, 1:, None])
        assert together[i] == pytest.approx(float(gains.detach().sum()), rel=1e-4)


def test_a_captions_draws_do_not_depend_on_other_captions() -> None:
    """With the same random numbers, a caption has the same bound whatever other captions are in its batch."""
    model, captions = make_captioner("show_attend_tell-hard"), random_sentences(5, seed=2)
    a = model.annotations(random_images(5, seed=1))
    torch.manual_seed(3)
    noise = [torch.rand(7, len(caption) + 1) for caption in captions]
    together = list(caption_likelihoods(model, a, range(5), captions, noise.__getitem__))
    for i, likelihood in enumerate(together):
        (alone,) = caption_likelihoods(model, a, [i], captions[i : i + 1], lambda _, i=i: noise[i])
        assert alone == pytest.approx(likelihood, rel=1e-4) and likelihood["bound"] < likelihood["estimate"]
