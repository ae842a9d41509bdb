"""`eval bound=`: the bound and the estimate of log p, against enumeration."""

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


def expected(case: Enumerable, samples: int) -> float:
    """E[log 1/K Σ_k p(y|s_k, a)], over all K draws."""
    log_p_s, log_p_y = (one.detach() for one in case.enumerated())
    drawn = torch.tensor(list(itertools.product(range(27), repeat=samples)))
    estimates = log_p_y[drawn].logsumexp(1) - math.log(samples)
    return float((log_p_s[drawn].sum(1).exp() * estimates).sum())


def found(case: Enumerable, samples: int, repeats: int) -> tuple[Tensor, Tensor]:
    """The bound's and the estimate's terms of one caption, drawn again and again."""
    torch.manual_seed(5)
    caption = case.batch.target[0, 1:-1].tolist()
    a = case.batch.source.values.double().expand(repeats, -1, -1)
    chances = list(torch.rand(repeats, samples, 3, dtype=torch.float64))
    each = list(caption_likelihoods(case.model.eval(), a, range(repeats), [caption] * repeats, chances.__getitem__))
    return tuple(torch.tensor([one[name] for one in each]) for name in ("bound", "estimate"))


def test_the_estimate_lies_between_the_bound_and_log_p_and_rises_with_the_draws() -> None:
    case = Enumerable.make()
    log_p_s, log_p_y = (one.detach() for one in case.enumerated())
    bound, log_p = float((log_p_s.exp() * log_p_y).sum()), float((log_p_s + log_p_y).logsumexp(0))
    exact = [expected(case, samples) for samples in range(1, DRAWS + 1)]
    assert exact[0] == pytest.approx(bound, abs=1e-12)
    assert bound - 1e-12 <= exact[0] < exact[1] < exact[2] < log_p
    for samples, mean in enumerate(exact, 1):
        bounds, estimates = found(case, samples, 4000)
        for sampled, true in ((bounds, bound), (estimates, mean)):
            assert abs(float(sampled.mean()) - true) < 4 * float(sampled.std()) / len(sampled) ** 0.5


def test_soft_attention_has_log_p_itself() -> None:
    """That of teacher forcing, whatever captions stand beside it; and of hard attention each draw has its own row."""
    model, captions = make_captioner("show_attend_tell-soft"), random_sentences(40, seed=2)
    a = model.annotations(random_images(40, seed=1))
    together = [one["log_p"] for one in caption_likelihoods(model, a, range(40), captions, None)]
    for i, caption in enumerate(captions):
        target = make_target([caption])
        alone = model.project(model(Annotations(a[i : i + 1]), target[:, :-1]).features)
        gains = alone.log_softmax(-1)[0].gather(1, target[0, 1:, None])
        assert together[i] == pytest.approx(float(gains.detach().sum()), rel=1e-4)


def test_draws_belong_to_their_caption() -> None:
    """The same numbers give the same bound beside other captions."""
    model, captions = make_captioner("show_attend_tell-hard"), random_sentences(5, seed=2)
    a = model.annotations(random_images(5, seed=1))
    torch.manual_seed(3)
    chances = [torch.rand(7, len(caption) + 1) for caption in captions]
    together = list(caption_likelihoods(model, a, range(5), captions, chances.__getitem__))
    for i, one in enumerate(together):
        (alone,) = caption_likelihoods(model, a, [i], captions[i : i + 1], lambda _, i=i: chances[i])
        assert alone == pytest.approx(one, rel=1e-4) and one["bound"] < one["estimate"]
