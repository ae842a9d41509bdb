"""The loss against torch's own, and what must not enter it."""

import pytest
import torch
from small_models import make_model, random_sentences
from torch.nn import functional as F

from seqtool.data.batches import Batch, make_source, make_target
from seqtool.losses import TrainingLoss, token_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_torchs(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7), torch.randint(1, 7, (3, 5))
    labels[1, 3:] = 0
    loss = token_cross_entropy(logits, labels, smoothing)
    flat, targets = logits.flatten(0, 1), labels.flatten()
    expected = F.cross_entropy(flat, targets, ignore_index=0, reduction="sum", label_smoothing=smoothing)
    assert float(loss.total) == pytest.approx(float(expected), rel=1e-5)
    plain = F.cross_entropy(flat, targets, ignore_index=0, reduction="sum")
    assert float(loss.nll) == pytest.approx(float(plain), rel=1e-5)


def test_a_batchs_loss_is_the_sum_of_its_sentences() -> None:
    """Padding of the longer mates adds nothing."""
    loss = TrainingLoss(make_model("bahdanau-gru"), 0.1)
    sources, targets = random_sentences(6, seed=1), random_sentences(6, seed=2)

    def batch(rows: list[int]) -> Batch:
        import numpy as np

        source = make_source([sources[i] for i in rows])
        target = make_target([targets[i] for i in rows])
        return Batch(source, target, np.array(rows), sum(len(targets[i]) + 1 for i in rows))

    with torch.no_grad():
        together = loss(batch(list(range(6))))
        apart = [loss(batch([i])) for i in range(6)]
    assert float(together.total) == pytest.approx(sum(float(one.total) for one in apart), rel=1e-5)
    assert float(together.nll) == pytest.approx(sum(float(one.nll) for one in apart), rel=1e-5)
