"""How much of the loss's gradient reaches each time step: vanishing and exploding gradients, visible.

The loss here is −log p of each sentence's last token alone, EOS, so that what arrives at step t has travelled through
every step between: ‖∂loss/∂h_t‖ is the product of Jacobians of the lectures (Bengio et al. 1994; Pascanu et al. 2013).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqtool import plots
from seqtool.data.batches import Batch, Source
from seqtool.data.vocabulary import PAD
from seqtool.errors import naming
from seqtool.models import sharing
from seqtool.models.encoder_decoder import EncoderDecoder


class GradientFlow:
    """Measures at each validation into `gradient_flow.jsonl`, and draws all measurements."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / "gradient_flow.jsonl"

    def measure(self, model: EncoderDecoder[Any], batch: Batch, step: int) -> None:
        record = {"step": step, **gradient_norms(model, batch)}
        with naming(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        records = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        plots.gradient_flow(
            {f"step {r['step']:,}": (r["encoder"], r["decoder"]) for r in records[:: max(1, len(records) // 6)]},
            self.run / "gradient_flow.png",
        )


def gradient_norms(model: EncoderDecoder[Any], batch: Batch) -> dict[str, list[float]]:
    """‖∂loss/∂h_t‖ for the encoder's and the decoder's states in the order of time, without dropout."""
    assert isinstance(batch.source, Source)  # sentences; an image is not read step by step
    was_training = model.training
    model.eval()  # without dropout
    with torch.enable_grad(), sharing.plain():  # step by step
        output = model(batch.source, batch.inputs)
        logits = model.project(output.features)
        last = (batch.labels != PAD).sum(1) - 1
        rows = torch.arange(len(last), device=last.device)
        loss = -logits.float().log_softmax(-1)[rows, last, batch.labels[rows, last]].sum()
        states = [*output.encoder_states, *output.decoder_states]
        gradients = torch.autograd.grad(loss, states, allow_unused=True)
    model.train(was_training)
    split = len(output.encoder_states)
    return {
        "encoder": _mean_norms(gradients[:split], batch.source.lengths),
        "decoder": _mean_norms(gradients[split:], last + 1),
    }


def _mean_norms(gradients: Sequence[Tensor | None], lengths: Tensor) -> list[float]:
    """By time step, the mean over the sentences that have such a step."""
    norms = []
    for t, gradient in enumerate(gradients):
        rows = lengths > t
        norms.append(0.0 if gradient is None or not rows.any() else float(gradient[rows].norm(dim=-1).mean()))
    return norms
