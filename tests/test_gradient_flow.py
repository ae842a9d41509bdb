"""Tests of gradient flow, the gradient norms at each time step: they match autograd, and vanish or grow as is known."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import CAPTIONERS, MODELS, copy_with_fast_parts, make_captioner, make_model, random_images
from torch import Tensor

from seqtool.data.batches import Batch, Streams, make_source, make_target
from seqtool.errors import InputError
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import Layers, Recurrence, cells_of
from seqtool.models.initialisation import initialise
from seqtool.models.language_model import LanguageModel
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.models.tokens import EOS
from seqtool.training.gradient_flow import check, flow, read

RECURRENT = [name for name in (*MODELS, *CAPTIONERS) if not name.startswith("transformer")]


def make_reader(cell: str, hidden: int = 64, **initial: Any) -> LanguageModel:
    """Return a language model with small embeddings, so that its state depends almost only on the recurrence."""
    torch.manual_seed(0)
    model = LanguageModel(
        target_vocabulary=20, embedding=8, hidden=hidden, layers=1, cell=cell, dropout=0.0, tie="none"
    )
    initialise(model, "default", **initial)
    with torch.no_grad():
        model.target_embedding.weight.mul_(0.01)
    return model


def make_text(steps: int, rows: int = 8) -> Batch:
    tokens = np.random.default_rng(0).integers(4, 20, steps * rows).astype(np.uint16)
    return Streams(tokens, stream_count=rows, steps=steps).probes(rows)


def gradient_norms(model: Any, batch: Batch, tensor: str = "h") -> list[float]:
    (tensors,) = flow(model, batch)["gradients"].values()
    norms: list[float] = tensors[tensor]
    return norms


def test_rnn_gradients_vanish_or_grow_with_the_gain() -> None:
    """The model is untrained and reads 60 tokens."""
    shrinking = gradient_norms(make_reader("rnn", gain=0.8), make_text(60))
    growing = gradient_norms(make_reader("rnn", gain=1.1), make_text(60))
    assert len(shrinking) == len(growing) == 60
    assert shrinking[0] <= 1e-4 * shrinking[-1]
    assert growing[0] >= 2 * growing[-1]


def test_gradients_survive_in_an_lstm_that_forgets_little() -> None:
    batch = make_text(60)
    remembering = make_reader("lstm", forget_bias=4.0)
    for tensor in "hc":
        norms = gradient_norms(remembering, batch, tensor)
        assert norms[0] >= 1e-2 * norms[-1]
    forgetting = gradient_norms(make_reader("lstm", forget_bias=-4.0), batch)
    assert forgetting[0] < 1e-8 * forgetting[-1]


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "gru_cho"])
def test_norms_match_the_gradient_with_respect_to_the_state(cell: str) -> None:
    """Compare flow, which differentiates the graph of the whole text, with autograd from the state s_t onwards."""
    model, batch = copy_with_fast_parts(make_reader(cell, 6)).eval(), make_text(7, rows=1)
    flow_norms = flow(model, batch)["gradients"]["decoder.0"]
    for t in range(6):
        state = model(None, batch.inputs[:, : t + 1]).state.layers[0]
        initial = tuple(tensor.detach().requires_grad_() for tensor in state)
        features = model(None, batch.inputs[:, t + 1 :], Layers((initial,))).features
        loss = -model.project(features)[0, -1].log_softmax(-1)[batch.labels[0, -1]]
        h, *c = torch.autograd.grad(loss, initial)
        norms = {"h": float(h.norm())}
        if c:  # o∘(1 − tanh²(c)) is ∂h/∂c
            through_h = h * (initial[0] / initial[1].tanh()) * (1 - initial[1].tanh() ** 2)
            norms["c"] = float((c[0] + through_h).detach().norm())
        assert norms == pytest.approx({letter: values[t] for letter, values in flow_norms.items()}, rel=1e-3)


def test_the_last_state_has_the_gradient_of_the_output_layer() -> None:
    model = make_model("sutskever-rnn")
    source, target = make_source([[4, 5, 6]]), make_target([[7, 8]])
    norms = flow(model, Batch(source, target, np.arange(1), 3))["gradients"]
    assert {name: len(state["h"]) for name, state in norms.items()} == {
        **{f"encoder.ahead.{layer}": 4 for layer in (0, 1)},
        **{f"decoder.{layer}": 3 for layer in (0, 1)},
    }
    gradient = model.project(model(source, target[:, :-1]).features[0, -1]).softmax(-1)
    gradient[EOS] -= 1
    expected = float((gradient @ model.output.weight).detach().norm())
    assert norms["decoder.1"]["h"][-1] == pytest.approx(expected, rel=1e-4)


def test_sentences_that_have_ended_are_left_out_of_the_mean() -> None:
    """The batch has a short and a long sentence. At steps that only the long one has, the mean is its norm."""
    model = make_model("sutskever-gru")
    sources, targets = [[4, 5, 6], [5, 5, 5]], [[7, 8, 9, 4], [6]]

    def measure(rows: slice) -> list[float]:
        batch = Batch(make_source(sources[rows]), make_target(targets[rows]), np.arange(2), 7)
        norms: list[float] = flow(model, batch)["gradients"]["decoder.1"]["h"]
        return norms

    together, long, short = measure(slice(2)), measure(slice(1)), measure(slice(1, 2))
    means = [*((long_norm + short_norm) / 2 for long_norm, short_norm in zip(long, short, strict=False)), *long[2:]]
    assert together == pytest.approx(means, rel=1e-3)


@pytest.mark.parametrize("name", RECURRENT)
def test_every_recurrent_model_is_measured_and_left_unchanged(name: str) -> None:
    """Both directions of an encoder, all layers and the cell state c of LSTMs are measured."""
    target = make_target([[4, 5, 6], [7, 8, 9]])
    if name in MODELS:
        model: Any = make_model(name)
        batch = Batch(make_source([[4, 5], [6, 7]]), target, np.arange(2), 8)
    else:
        model, batch = make_captioner(name), Batch(random_images(2, seed=1), target, np.arange(2), 8)
    before = copy.deepcopy(model.state_dict())
    model = copy_with_fast_parts(model).train()
    check(model)
    flows = flow(model, batch)
    has_separate_cell = isinstance(model, ShowAttendTell | Bahdanau)  # a cell outside the Recurrence modules
    cells = sum(isinstance(module, Recurrence) for module in model.modules()) + has_separate_cell
    assert len(flows["gradients"]) == len(flows["singular_values"]) == cells
    assert all(norm > 0 for state in flows["gradients"].values() for norm in state["h"])
    assert any(name.startswith("encoder.back") for name in flows["gradients"]) == (
        name.startswith(("bahdanau", "luong")) and "one-way" not in name
    )
    if "lstm" in name or name == "luong":
        assert all(state.keys() == {"h", "c"} for state in flows["gradients"].values())
    for values in flows["singular_values"].values():
        assert values[0] > 0
    assert model.training and all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_singular_values_of_orthogonal_weights_equal_the_gain() -> None:
    """The states are near 0, where the derivative of tanh is 1."""
    (singular_values,) = flow(make_reader("rnn", gain=0.7), make_text(10))["singular_values"].values()
    assert singular_values == pytest.approx([0.7] * 64, rel=0.01)


def test_gain_and_forget_bias_are_refused_if_they_have_no_effect() -> None:
    model = make_model("bahdanau-gru")
    with pytest.raises(InputError, match=r"^forget_bias=2 is for LSTMs, and this model has none: leave it out\.$"):
        initialise(model, "default", forget_bias=2.0)
    with pytest.raises(InputError, match=r"^initialisation_gain=0.8 multiplies orthogonal recurrent matrices, which"):
        initialise(model, "sutskever2014", gain=0.8)
    with pytest.raises(InputError, match=r"^initialisation_gain=0.8 multiplies orthogonal recurrent matrices, which"):
        initialise(make_model("transformer"), "default", gain=0.8)
    with pytest.raises(InputError, match=r"is for recurrent models, and Transformer has no cells: leave it out\.$"):
        check(make_model("transformer"))
    initialise(model, "bahdanau2015", gain=0.8)
    gates: Tensor = model.get_parameter("cell.recurrent.weight")
    for gate in gates.split(8):
        assert torch.allclose(gate @ gate.t(), 0.64 * torch.eye(8), atol=1e-5)


def test_recorded_measurements_are_read_except_invalid_lines(tmp_path: Path) -> None:
    """A last line that was cut short is ignored; any other invalid line is refused."""
    measurement = {"step": 3, "gradients": {"decoder.0": {"h": [0.5, 1.0]}}, "singular_values": {"decoder.0": [1.0]}}
    path, line = tmp_path / "gradient_flow.jsonl", json.dumps(measurement)
    path.write_text(f"{line}\n{line[:20]}")
    assert read(tmp_path) == [measurement]
    for invalid in (line[:20], '{"step": 1, "gradients": {"a": 3}}', "[1]", '{"gradients": {}, "singular_values": {}}'):
        path.write_text(f"{line}\n{invalid}\n{line}\n")
        with pytest.raises(InputError, match=r"gradient_flow\.jsonl line 2 is not a measurement\."):
            read(tmp_path)


def test_untrained_cells_behave_as_the_gradients_page_says() -> None:
    """A fresh GRU's gradient vanishes, and the gradient of an RNN with a gain of 1.1 grows far less than 1.1 a step."""
    vanishing = gradient_norms(make_reader("gru"), make_text(60))
    growing = gradient_norms(make_reader("rnn", gain=1.1), make_text(60))
    assert vanishing[0] < 1e-4 * vanishing[-1]
    assert growing[0] < 1.1**60 / 2 * growing[-1]


def test_gradients_too_small_for_single_precision_squares_are_measured() -> None:
    """With a gain of 0.3, the norm at the first step is about 1e-31. Its logarithm must fall in a straight line."""
    log_norms = np.log10(gradient_norms(make_reader("rnn", gain=0.3), make_text(60)))
    assert np.isfinite(log_norms).all() and np.allclose(np.diff(log_norms), -np.log10(0.3), atol=0.1)


def test_gradients_that_are_not_numbers_are_not_recorded_as_vanished() -> None:
    model = make_reader("linear", gain=1.0)
    with torch.no_grad():
        next(iter(cells_of(model).values())).recurrent.weight.mul_(30)
    norms = gradient_norms(model, make_text(80))
    assert norms[0] is None and 0.0 not in norms


def test_an_exploded_state_has_no_singular_values() -> None:
    model = make_reader("rnn")
    with torch.no_grad():
        next(iter(cells_of(model).values())).recurrent.weight.fill_(torch.inf)
    flows = flow(model, make_text(10))
    assert list(flows["singular_values"].values()) == [[]]
    json.dumps(flows, allow_nan=False)


@pytest.mark.parametrize("settings", [{"gain": torch.inf}, {"forget_bias": torch.nan}])
def test_initial_weights_must_be_finite(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"must be a finite number, not (inf|nan)"):
        make_reader("lstm", **settings)
