#!/usr/bin/env python
"""Draw the entropy of attention against the size of queries and keys, with the scale 1/√d and without it.

    python scripts/attention_entropy.py docs/pictures/attention_entropy.png

The numbers in a query q and in each key k are independent, with mean 0 and variance 1, so q·k has variance d. Without a
scale the softmax of large products picks out a single key, and its gradient vanishes (Vaswani et al. 2017, 3.2.1).
"""

import argparse
import math
from pathlib import Path

import torch

from seqtool.view import plots

KEYS, QUERIES = 32, 2000
SIZES = (4, 8, 16, 32, 64, 128, 256, 512)


def entropies(d: int, scale: float, generator: torch.Generator) -> tuple[float, float]:
    """The mean entropy in nats of softmax(scale · q·k) over the keys, and the mean norm of the softmax's Jacobian."""
    q = torch.randn(QUERIES, 1, d, generator=generator)
    k = torch.randn(QUERIES, KEYS, d, generator=generator)
    alpha = (scale * (q * k).sum(-1)).double().softmax(-1)
    jacobian = torch.diag_embed(alpha) - alpha[:, :, None] * alpha[:, None]  # ∂α_i/∂e_j = α_i (δ_ij − α_j)
    return float(torch.special.entr(alpha).sum(-1).mean()), float(jacobian.norm(dim=(1, 2)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="the PNG, SVG or PDF file to write")
    arguments = parser.parse_args()
    scales = {"$q·k$": lambda d: 1.0, "$q·k/\\sqrt{d}$": lambda d: 1 / math.sqrt(d)}
    labels = f"entropy of attention in nats, {KEYS} keys", "norm of the softmax's Jacobian"
    with plots.drawing(arguments.picture, 9, 3.6) as figure:
        panels = figure.subplots(1, 2)
        for name, scale in scales.items():
            generator = torch.Generator().manual_seed(0)
            values = [entropies(d, scale(d), generator) for d in SIZES]
            for d, (entropy, norm) in zip(SIZES, values, strict=True):
                print(f"{name:<16} d = {d:3}: entropy {entropy:.3f} nats, Jacobian {norm:.3f}")
            for axes, numbers, label in zip(panels, zip(*values, strict=True), labels, strict=True):
                axes.plot(SIZES, numbers, marker="o", color=plots.COLOURS[list(scales).index(name)], label=name)
                plots.style_axes(axes, xlabel="d, the size of queries and keys", ylabel=label)
        panels[0].axhline(math.log(KEYS), color="0.4", linestyle=":", label=f"equal weights, ln {KEYS}")
        for axes in panels:
            axes.set_xscale("log", base=2)
            axes.set_xticks(SIZES, [str(d) for d in SIZES])
            axes.set_ylim(0, None)
        panels[0].legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.8))
        figure.tight_layout()


if __name__ == "__main__":
    main()
