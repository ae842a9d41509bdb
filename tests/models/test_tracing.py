"""Tests of traces: they equal what the model computes in a batch, for every family and for cells of one's own."""

from typing import Any

import pytest
import torch
from small_models import (
    BAHDANAU,
    CAPTIONERS,
    MODELS,
    copy_with_fast_parts,
    make_captioner,
    make_model,
    random_images,
    random_sentences,
)
from torch import Tensor

from seqtool.data.batches import make_source, make_target
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import RNN, OneProductCell, State
from seqtool.models.contract import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.models.inputs import Annotations
from seqtool.models.language_model import LanguageModel
from seqtool.models.tracing import Traced, trace
from seqtool.models.transformer import TransformerLanguageModel

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
ROW, ROWS = 1, 4  # the row of a batch that is traced
SENTENCES, TARGETS = random_sentences(ROWS, seed=1), make_target(random_sentences(ROWS, seed=2))[:, :-1]


def case(name: str) -> tuple[EncoderDecoder[Any], Any, Any]:
    """A model in fp64, a batch of sources, and the source of one row alone."""
    if name in MODELS:
        return make_model(name).double(), make_source(SENTENCES), make_source(SENTENCES[ROW : ROW + 1])
    images = Annotations(random_images(ROWS, seed=1).values.double())
    return make_captioner(name).double(), images, Annotations(images.values[ROW : ROW + 1])


def states_of_cells(traced: dict[str, Traced], beginning: str) -> list[list[Tensor]]:
    """The traced tensors of the state of each cell whose name begins in this way, in the order of the cells."""
    cells: dict[str, list[Tensor]] = {}
    for name, (values, _) in traced.items():
        if name.startswith(beginning) and name.rpartition(".")[2] in "hc":
            cells.setdefault(name.rpartition(".")[0], []).append(values)
    return list(cells.values())


@pytest.mark.parametrize("name", [*MODELS, *CAPTIONERS])
def test_a_trace_equals_the_batch(name: str) -> None:
    """Logits and attention are those of `forward` and the last states those of `prefill`, whatever the batch's other
    rows, and whether parts are plain or fast.
    """
    model, batch, source = case(name)
    length = int((TARGETS[ROW] != 0).sum())
    for traced_model in (model, copy_with_fast_parts(model)):
        traced = trace(traced_model, source, TARGETS[ROW, :length])
        output = model(batch, TARGETS)
        assert torch.allclose(traced["logits"].values, model.project(output.features)[ROW, :length], **CLOSE)
        assert ("attention" in traced) == model.attends == (output.attention is not None)
        if output.attention is not None:
            width = traced["attention"].values.shape[1]
            assert torch.allclose(traced["attention"].values, output.attention[ROW, :length, :width], **CLOSE)
        cells = states_of_cells(traced, "decoder") + states_of_cells(traced, "upper")
        for steps in range(1, length + 1) if cells else ():
            memory, first_state = model.encode(batch)
            state: Any = model.prefill(memory, first_state, TARGETS[:, :steps]).state
            expected = [state.cell] if name.startswith("show_attend_tell") else state.layers
            for letters, tensors in zip(cells, expected, strict=True):
                for values, tensor in zip(letters, tensors, strict=True):
                    assert torch.allclose(values[steps - 1], tensor[ROW], **CLOSE)


@pytest.mark.parametrize("name", ["bahdanau-deep", "bahdanau-gru_cho", "luong"])
def test_states_of_a_source_are_in_the_order_of_its_words(name: str) -> None:
    """The states of the top layer in both directions are the annotation vectors h_j."""
    model, batch, source = case(name)
    traced, top = trace(model, source, TARGETS[ROW, :2]), len(model.encoder.ahead) - 1
    states = [traced[f"encoder.{direction}.{top}.h"].values for direction in ("ahead", "back")]
    memory, _ = model.encode(batch)
    assert torch.allclose(torch.cat(states, -1), memory.values[ROW, : len(states[0])], **CLOSE)


def test_states_of_a_reversed_source_are_in_the_order_of_its_words() -> None:
    """The encoder reads c b a <eos>: its state at a, the first word, comes third, and that at <eos> last."""
    model = make_model("sutskever-lstm").double()
    traced = trace(model, make_source([[5, 6, 7]]), TARGETS[ROW, :2])
    h = traced["encoder.ahead.1.h"].values
    _, state = model.encode(make_source([[5, 6, 7]]))
    assert torch.allclose(h[3], state.top[0], **CLOSE)
    alone = trace(model, make_source([[7]]), TARGETS[ROW, :2])["encoder.ahead.1.h"].values
    assert torch.allclose(h[2], alone[0], **CLOSE) and not torch.allclose(h[0], alone[0], **CLOSE)


def test_gates_give_the_states() -> None:
    model, _, source = case("bahdanau-lstm")
    traced = {name: values for name, (values, _) in trace(model, source, TARGETS[ROW, :4]).items()}
    i, f, g, o, c, h = (traced[f"decoder.{letter}"] for letter in "ifgoch")
    assert torch.allclose(c[1:], f[1:] * c[:-1] + i[1:] * g[1:], **CLOSE) and torch.allclose(h, o * c.tanh(), **CLOSE)
    model, _, source = case("bahdanau-gru_cho")
    traced = {name: values for name, (values, _) in trace(model, source, TARGETS[ROW, :4]).items()}
    z, n, h = (traced[f"encoder.back.0.{letter}"] for letter in "znh")  # reads from the last word to the first
    assert torch.allclose(h[:-1], (1 - z[:-1]) * h[1:] + z[:-1] * n[:-1], **CLOSE)


def test_heads_are_those_that_the_model_shows() -> None:
    """Cross-attention of layer 1, head 2 is what the model with that setting returns; no head sees later tokens."""
    model, _, source = case("transformer-post")
    length = int((TARGETS[ROW] != 0).sum())
    traced = trace(model, source, TARGETS[ROW, :length])
    heads = traced["decoder.layers.0.source_attention"]
    assert heads.axes == ("target", "head", "source")
    assert torch.allclose(heads.values[:, 1], traced["attention"].values, **CLOSE)
    for layer in ("decoder.layers.0", "decoder.layers.1", "encoder.0", "encoder.1"):
        name = f"{layer}.attention"
        values, axes = traced[name]
        assert axes == ("target" if layer.startswith("decoder") else "source", "head", "key")
        assert torch.allclose(values.sum(-1), values.new_ones(values.shape[:2]), **CLOSE)
        assert bool(values.transpose(0, 1).triu(1).any()) == layer.startswith("encoder")


def test_a_window_of_a_language_model_sees_its_own_tokens() -> None:
    """After the first window of 4 tokens is full, attention is 0 at the tokens that are no longer seen."""
    torch.manual_seed(0)
    settings = {"width": 8, "heads": 2, "feed_forward": 12, "norm": "pre", "positions": "sinusoids"}
    model = TransformerLanguageModel(target_vocabulary=11, layers=1, context=4, dropout=0.0, tie="none", **settings)
    model.double().eval()
    tokens = torch.tensor([2, 4, 5, 6, 7, 8, 9, 4])
    traced = trace(model, None, tokens)
    output = model(None, tokens[None])
    assert torch.allclose(traced["logits"].values, model.project(output.features)[0], **CLOSE)
    seen = [[i for i, weight in enumerate(row) if weight] for row in traced["decoder.layers.0.attention"].values[:, 0]]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [2, 3, 4], [2, 3, 4, 5], [4, 5, 6], [4, 5, 6, 7]]


class Leaky(OneProductCell):
    """A cell of one's own, with a gate that `activations` names and a second tensor of its state."""

    gates, tensors, letters = 1, 2, ("h", "average")

    def forward(self, x: Tensor, state: State) -> State:
        h, average = state
        h = torch.tanh(x + self.recurrent(h))
        return h, 0.9 * average + 0.1 * h

    def activations(self, x: Tensor, state: State) -> dict[str, Tensor]:
        return {"shifted": x + self.recurrent(state[0])}


class Silent(RNN):
    """A cell of one's own that names nothing."""


def test_cells_of_ones_own_are_traced() -> None:
    for cell, names in ((Leaky, {"h", "average", "shifted"}), (Silent, {"h"})):
        torch.manual_seed(0)
        model = Bahdanau(**BAHDANAU | {"cell": cell})
        initialise(model, "default")
        traced = trace(model, make_source(SENTENCES[:1]), TARGETS[ROW, :3])
        decoder = {name.removeprefix("decoder."): values for name, (values, _) in traced.items() if "decoder" in name}
        assert decoder.keys() == names and all(values.shape == (3, 8) for values in decoder.values())
        if cell is Leaky:
            assert torch.equal(decoder["h"], decoder["shifted"].tanh())


def test_a_language_model_is_traced_from_its_beginning() -> None:
    torch.manual_seed(0)
    model = LanguageModel(target_vocabulary=11, embedding=6, hidden=8, layers=2, cell="lstm", dropout=0.0, tie="none")
    traced = trace(model, None, torch.tensor([2, 4, 5]))
    assert traced["decoder.1.c"].values.shape == (3, 8) and not any("source" in axes for _, axes in traced.values())
