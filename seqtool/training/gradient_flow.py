"""How much of the loss's gradient reaches each time step: vanishing and exploding gradients made visible.

The loss here is −log p of only each sentence's last token, EOS, so that the gradient at step t has passed through
every step between: ‖∂loss/∂h_t‖ is the product of Jacobians of the lectures (Bengio et al. 1994; Pascanu et al. 2013).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqtool.data.batches import Batch
from seqtool.errors import naming
from seqtool.models.contract import EncoderDecoder
from seqtool.models.inputs import Source
from seqtool.models.tokens import PAD
from seqtool.training.recording import GRADIENT_FLOW
from seqtool.view import plots

PROBES = 64  # sentence pairs, at most


def measure(run: Path, model: EncoderDecoder[Any], split: Any, device: torch.device, step: int) -> None:
    """Add a step, unless already measured, to the run's `gradient_flow.jsonl`, and plot all its measurements.

    Each uses the same training pairs, all of one, rather long, source length.
    """
    path = run / "gradient_flow.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    if records and records[-1]["step"] == step:
        return
    lengths, _ = split.lengths(np.arange(len(split)))
    pairs = np.flatnonzero(lengths == np.sort(lengths)[int(0.9 * (len(lengths) - 1))])[:PROBES]
    records.append({"step": step, **gradient_norms(model, split.collate(pairs).to(device))})
    with naming(path), path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(records[-1]) + "\n")
    plots.gradient_flow(
        {f"step {r['step']:,}": (r["encoder"], r["decoder"]) for r in records[:: max(1, len(records) // 6)]},
        run / GRADIENT_FLOW,
    )


def gradient_norms(model: EncoderDecoder[Any], batch: Batch) -> dict[str, list[float]]:
    """‖∂loss/∂h_t‖ for the encoder's and the decoder's states in the order of time, without dropout."""
    assert isinstance(batch.source, Source)  # sentences; an image is not read step by step
    was_training = model.training
    model.eval()  # without dropout
    with torch.enable_grad():
        output = model(batch.source, batch.inputs, stepwise=True)
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
