#!/usr/bin/env python
"""Check that torch.compile makes one graph of the loss of every kind of model, forward and backward, from plain parts.

    python scripts/trace_models.py
    python scripts/trace_models.py --backend aot_eager --only 'transformer'

For each kind of model, small and without dropout, in float64, the script prints the number of graphs, the seconds that
compiling took, and the relative differences between the compiled and the plain loss, and between their gradients. The
exit status is 1 if a model has more than one graph or a difference above 1e-9.
"""

import argparse
import re
import sys
from typing import Any

import torch
from omegaconf import OmegaConf

from seqtool.data.batches import make_source, make_target
from seqtool.models.backbone import ImageCaptioner
from seqtool.models.contract import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.models.inputs import Annotations
from seqtool.models.parts import build_model
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory
from seqtool.training.losses import TrainingLoss

ALLOWED = 1e-9
VOCABULARY, ROWS = 11, 3
SMALL: dict[str, Any] = {
    **dict.fromkeys(("embedding", "hidden", "encoder_hidden", "decoder_hidden", "width", "feed_forward"), 8),
    **dict.fromkeys(("alignment", "maxout"), 6),
    **dict.fromkeys(("layers", "encoder_layers", "decoder_layers"), 1),
    **{"heads": 2, "dropout": 0.0, "embedding_dropout": 0.0},
}
# settings of configs/model/NAME.yaml; each cell, attention score and way of training is in one of them
FAMILIES = {
    "bahdanau": ["cell=gru_cho score=additive", "cell=lstm score=scaled_dot decoder_hidden=16 decoder_layers=2"],
    "luong": ["cell=gru score=general", "cell=lstm score=dot bidirectional=false"],
    "sutskever": ["cell=lstm"],
    "transformer": ["norm=post positions=learnt", "norm=pre"],
    "language_model": ["cell=lstm_norm", "cell=linear"],
    "transformer_language_model": ["context=64"],
    "show_tell": ["cell=rnn context=with_start"],
    "show_attend_tell": ["attention=hard samples=2 baseline=leave_one_out credit=future", "attention=soft"],
    "transformer_captioner": ["norm=pre"],
}
KINDS = [f"{family} {settings}" for family, of_family in FAMILIES.items() for settings in of_family]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="inductor", help="of torch.compile, such as aot_eager")
    parser.add_argument("--longest", type=int, default=1, help="words of the longest sentence")
    parser.add_argument("--only", default="", help="a regular expression: compile only what matches")
    arguments = parser.parse_args()
    failed = False
    print("graphs  seconds     loss  gradient  model")
    for kind in filter(re.compile(arguments.only).search, KINDS):
        graphs, seconds, *differences = compare(kind, arguments.longest, arguments.backend)
        failed |= graphs != 1 or not max(differences) <= ALLOWED
        print(f"{graphs:6}  {seconds:7.1f}  {differences[0]:.1e}   {differences[1]:.1e}  {kind}", flush=True)
    sys.exit(failed)


def compare(kind: str, longest: int, backend: str) -> tuple[int, float, float, float]:
    """Return the number of graphs, the seconds to compile, and the differences of the loss and of the gradient."""
    from torch._dynamo.utils import calculate_time_spent, counters  # takes seconds

    torch._dynamo.reset()
    counters.clear()
    before = calculate_time_spent()["total_wall_time"]
    torch.manual_seed(0)
    model, source = make(kind, longest)
    loss = TrainingLoss(model.double().train(), smoothing=0.1).double().train()
    target = make_target(sentences(longest))
    inputs, labels, carries = target[:, :-1], target[:, 1:], model.task == "language_modelling"
    rows = model.draw_rows(inputs) if isinstance(model, ShowAttendTell) and model.hard else None
    totals, gradients = [], []
    for compute in (loss.compute, torch.compile(loss.compute, backend=backend, fullgraph=True, dynamic=False)):
        model.zero_grad()
        total = compute(source, inputs, labels, None, rows, carries=carries).total
        total.backward()
        totals.append(float(total.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    plain, compiled = gradients
    difference = float((plain - compiled).norm() / plain.norm())
    seconds = calculate_time_spent()["total_wall_time"] - before
    return counters["stats"]["unique_graphs"], seconds, abs(totals[1] / totals[0] - 1), difference


def make(kind: str, longest: int) -> tuple[EncoderDecoder[Any], Any]:
    """Make a model of this kind and the source of a batch."""
    family, *chosen = kind.split()
    settings = OmegaConf.to_container(OmegaConf.load(config_directory() / "model" / f"{family}.yaml"))
    settings = {**settings, **{name: value for name, value in SMALL.items() if name in settings}}
    settings = OmegaConf.merge(settings, OmegaConf.from_dotlist(chosen))
    settings.pop("defaults", None)
    sizes: dict[str, Any] = {"target_vocabulary": VOCABULARY}
    source: Any = None
    if is_captioner := "show" in family or "captioner" in family:
        settings.encoder = {**defaults("encoder"), "size": 16, "fine_tune_from": None, "augment": False}
        sizes["pretrained"] = False
    elif "language_model" not in family:
        sizes["source_vocabulary"] = VOCABULARY
        source = make_source(sentences(longest))
    model: EncoderDecoder[Any] = build_model(settings, base=EncoderDecoder, **sizes)
    initialise(model, "default")
    if is_captioner:
        assert isinstance(model, ImageCaptioner)
        source = Annotations(torch.randn(ROWS, 4, model.backbone.dimension).half())
    return model, source


def sentences(longest: int) -> list[list[int]]:
    """Random sentences, of `longest` words and fewer."""
    return [torch.randint(4, VOCABULARY, (max(0, longest - row),)).tolist() for row in range(ROWS)]


if __name__ == "__main__":
    main()
