"""Marian's untrained recurrent models, changed so that every hypothesis ends at the same step.

Marian has no option for a minimum length, and its random models may end a hypothesis at any step.
"""

from pathlib import Path

import numpy as np

START, DECAY = 0.9, 0.95  # unit 0 of the first state, and its factor in each of the two cells of a step
GAIN, LOGIT = 2000, 10_000  # large enough for a switch: EOS is either impossible or certain


def end_at(length: int, model: Path, changed: Path) -> None:
    """Write a model whose hypotheses all have `length` tokens, of which the last is EOS. Its sizes stay the same.

    Unit 0 of the decoder's state decays by a constant factor at each step. Unit 0 of the readout compares it with a
    threshold, and is the only thing that the logit of EOS, entry 0 of the vocabulary, depends on.

    model: the parameters of a model of type s2s with GRUs, in numpy's format
    changed: the file to write
    """
    weights = dict(np.load(model))
    size = len(weights["decoder_cell1_U"])
    for cell in ("decoder_cell1", "decoder_cell2"):
        for name in ("U", "W"):  # both gates' weights, side by side; r of unit 0 has no effect
            weights[f"{cell}_{name}"][:, size] = 0
            weights[f"{cell}_{name}x"][:, 0] = 0
        weights[f"{cell}_b"][0, size] = np.log(DECAY / (1 - DECAY))  # the share of the old state, after the sigmoid
        weights[f"{cell}_bx"][0, 0] = 0
    weights["decoder_ff_state_W"][:, 0] = 0
    weights["decoder_ff_state_b"][0, 0] = np.arctanh(START)

    threshold = START * (DECAY ** (2 * length - 2) + DECAY ** (2 * length)) / 2
    for name, values in weights.items():
        if name.startswith("decoder_ff_logit_l1_"):  # the weights W… and biases b… of the readout
            values[:, 0] = 0
    weights["decoder_ff_logit_l1_W1"][0, 0] = -GAIN  # those of the state
    weights["decoder_ff_logit_l1_b0"][0, 0] = GAIN * threshold
    output = weights["decoder_ff_logit_l2_Wt"]
    output[:, 0] = output[0, :] = 0
    output[0, 0] = LOGIT
    weights["decoder_ff_logit_l2_b"][0, 0] = 0
    np.savez(changed, **weights)
