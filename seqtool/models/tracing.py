"""What a model computes inside while it reads a source and a text: states, gates and attention as named tensors.

The names of the tensors:

    CELL.h, CELL.c       the state of a recurrent cell after each step, by its `letters`
    CELL.i, CELL.f …     its gates and candidate, if the cell has a method `activations`
    LAYER.attention      the weights of self-attention, by head; LAYER.source_attention: those of cross-attention
    attention, logits    what `step` returns

CELL and LAYER are names of modules, such as encoder.back.0 and decoder.layers.1. The axes are `source` (positions in
the order of the text, EOS included), `target` (tokens read, the first of which is BOS), `unit`, `head`, `key` (the
position that self-attention looks at), `location` (of an image) and `symbol` (of the vocabulary).

`embed` gives a vector of a whole sentence, from the encoder of a translation model:

    last   recurrent encoders: h of the highest layer after its last step; of two directions, →h_S and ←h_1 joined. A
           source that is read backwards ends with its first word and <eos>, which stays last. A Transformer: the output
           of its encoder at <eos>.
    mean   the mean of the annotation vectors h_j, the outputs of the encoder at all words and at <eos>
    c      what the decoder starts from, its first state s_0: the tensors of all layers joined, h and (of LSTMs) c, the
           lowest layer first; with context=every_step, whose s_0 is zero, the fixed context. A Transformer has none.
"""

from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from seqtool.errors import InputError
from seqtool.models.cells import Cell, Encoder, Layers, State, cells_of
from seqtool.models.contract import EncoderDecoder
from seqtool.models.parts import plain_copy
from seqtool.models.recurrent_decoder import FixedContext
from seqtool.models.transformer import CrossAttention, SelfAttention, Transformer, attend_with_weights

Calls = dict[str, list[Tensor]]  # by name, a tensor for each call: 1×unit, or 1×head×query×key


class Traced(NamedTuple):
    """A tensor and the names of its axes."""

    values: Tensor
    axes: tuple[str, ...]


def trace(model: EncoderDecoder[Any], source: Any, tokens: Int[Tensor, "T"]) -> dict[str, Traced]:
    """Return everything that a model computes while it reads one source and these tokens (ids, from BOS on).

    model: a model of any parts; a plain copy of it is run, without dropout
    source: the input of `encode`, of one row without padding
    """
    model, calls = plain_copy(model).eval(), Calls()
    traced: dict[str, Traced] = {}
    steps: defaultdict[str, list[Tensor]] = defaultdict(list)
    with ExitStack() as stack, torch.inference_mode():
        _record(model, calls, stack)
        memory, state = model.encode(source)
        backward = tuple(f"{name}.back." for name, module in model.named_modules() if isinstance(module, Encoder))
        for name, of_name in calls.items():
            if of_name[0].dim() > 2:  # the only call of self-attention
                traced[name] = Traced(of_name[0][0].transpose(0, 1), ("source", "head", "key"))
            else:
                order = model.reading_order(len(of_name))
                order = order.flip(0) if name.startswith(backward) else order
                traced[name] = Traced(torch.cat(of_name)[order.argsort()], ("source", "unit"))
        for token in tokens[:, None]:
            calls.clear()
            step = model.step(memory, state, token)
            state = step.state
            for name, of_name in calls.items():
                steps[name].append(of_name[-1][0])  # earlier calls read the same tokens again
            steps["logits"].append(step.logits[0])
            if step.attention is not None:
                steps["attention"].append(step.attention[0])
    axes = {"logits": "symbol", "attention": "location" if model.task == "captioning" else "source"}
    for name, rows in steps.items():
        if rows[0].dim() == 1:
            traced[name] = Traced(torch.stack(rows), ("target", axes.get(name, "unit")))
        elif name.endswith(".source_attention"):
            traced[name] = Traced(torch.stack([row[:, -1] for row in rows]), ("target", "head", axes["attention"]))
        else:
            # row t has the weights of a window that ends with token t; those of tokens outside it are 0
            margins = ((t + 1 - row.shape[-1], len(rows) - 1 - t) for t, row in enumerate(rows))
            weights = [F.pad(row[:, -1], margin) for row, margin in zip(rows, margins, strict=True)]
            traced[name] = Traced(torch.stack(weights), ("target", "head", "key"))
    return traced


def embed(model: Any, source: Any, vector: str) -> Float[Tensor, "B D"]:
    """Return the vector `last`, `mean` or `c` of each sentence. Raises InputError if the model, which is built of plain
    parts, has no such vector.
    """
    h, encodings = None, []
    if vector == "c":
        memory, state = model.encode(source)
        if isinstance(model, FixedContext) and model.context == "every_step":
            return memory.values[:, 0]
        if isinstance(state, Layers):
            return torch.cat([tensor for layer in state.layers for tensor in layer], -1)
    elif isinstance(model, Transformer):
        h, _ = model.annotate(source)
    elif isinstance(getattr(model, "encoder", None), Encoder):
        with model.encoder.register_forward_hook(lambda *call: encodings.append(call[-1])):
            model.encode(source)
        if vector == "last":
            return torch.cat([layers[-1][0] for layers in (encodings[0].forward, encodings[0].backward) if layers], -1)
        h = encodings[0].annotations
    if h is None or vector not in ("last", "mean"):
        advice = "it has no encoder that seqtool knows" if h is None and vector != "c" else "choose last or mean"
        raise InputError(f"{type(model).__name__} has no vector={vector}: {advice}.")
    real = source.mask[:, :, None]
    return (h * real).sum(1) / real.sum(1) if vector == "mean" else h[torch.arange(len(h)), source.lengths - 1]


def _record(model: nn.Module, calls: Calls, stack: ExitStack) -> None:
    """Make the cells and attentions of a model append what they compute to `calls`; the model is a copy."""

    def record_cell(name: str, cell: Cell, arguments: tuple[Tensor, State], state: State) -> None:
        tensors = dict(zip(cell.letters, state, strict=False)) | cell.activations(*arguments)
        for letter, tensor in tensors.items():
            calls.setdefault(f"{name}.{letter}", []).append(tensor)

    def record_attention(name: str, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        output, weights = attend_with_weights(*arguments, **options)
        calls.setdefault(name, []).append(weights)
        return output, weights

    for name, cell in cells_of(model).items():
        stack.enter_context(cell.register_forward_hook(partial(record_cell, name)))
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention | CrossAttention):
            recording = partial(record_attention, name)
            module.attend = lambda *arguments, recording=recording, **options: recording(*arguments, **options)[0]
            if isinstance(module, CrossAttention):
                module.attend_with_weights = recording
