"""How much of the loss's gradient reaches each time step: against plain autograd, and as the lectures say."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import CAPTIONERS, MODELS, make_captioner, make_model, of_fast_parts, random_images
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


def reader(cell: str, hidden: int = 64, **initial: Any) -> LanguageModel:
    """A language model that reads small inputs: words are as good as silent, and only the recurrence speaks."""
    torch.manual_seed(0)
    model = LanguageModel(
        target_vocabulary=20, embedding=8, hidden=hidden, layers=1, cell=cell, dropout=0.0, tie="none"
    )
    initialise(model, "default", **initial)
    with torch.no_grad():
        model.target_embedding.weight.mul_(0.01)
    return model


def text(steps: int, rows: int = 8) -> Batch:
    tokens = np.random.default_rng(0).integers(4, 20, steps * rows).astype(np.uint16)
    return Streams(tokens, stream_count=rows, steps=steps).probes(rows)


def norms(model: Any, batch: Batch, tensor: str = "h") -> list[float]:
    (measured,) = flow(model, batch)["gradients"].values()
    found: list[float] = measured[tensor]
    return found


def test_of_an_rnn_they_shrink_and_grow_with_the_gain() -> None:
    """Sixty steps, untrained."""
    shrinking = norms(reader("rnn", gain=0.8), text(60))
    growing = norms(reader("rnn", gain=1.1), text(60))
    assert len(shrinking) == len(growing) == 60
    assert shrinking[0] <= 1e-4 * shrinking[-1]
    assert growing[0] >= 2 * growing[-1]


def test_of_an_lstm_that_forgets_little_they_pass() -> None:
    batch = text(60)
    remembering = reader("lstm", forget_bias=4.0)
    for tensor in "hc":
        found = norms(remembering, batch, tensor)
        assert found[0] >= 1e-2 * found[-1]
    forgetting = norms(reader("lstm", forget_bias=-4.0), batch)
    assert forgetting[0] < 1e-8 * forgetting[-1]


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "gru_cho"])
def test_they_are_those_of_a_state_that_is_given(cell: str) -> None:
    """∂loss/∂s_t, once by the graph of the whole text and once from the state s_t on."""
    model, batch = of_fast_parts(reader(cell, 6)).eval(), text(7, rows=1)
    measured = flow(model, batch)["gradients"]["decoder.0"]
    for t in range(6):
        state = model(None, batch.inputs[:, : t + 1]).state.layers[0]
        given = tuple(tensor.detach().requires_grad_() for tensor in state)
        features = model(None, batch.inputs[:, t + 1 :], Layers((given,))).features
        loss = -model.project(features)[0, -1].log_softmax(-1)[batch.labels[0, -1]]
        h, *c = torch.autograd.grad(loss, given)
        found = {"h": float(h.norm())}
        if c:  # o∘(1 − tanh²(c)) is ∂h/∂c
            through_h = h * (given[0] / given[1].tanh()) * (1 - given[1].tanh() ** 2)
            found["c"] = float((c[0] + through_h).detach().norm())
        assert found == pytest.approx({letter: values[t] for letter, values in measured.items()}, rel=1e-3)


def test_the_last_token_reaches_the_last_state_directly() -> None:
    model = make_model("sutskever-rnn")
    source, target = make_source([[4, 5, 6]]), make_target([[7, 8]])
    found = flow(model, Batch(source, target, np.arange(1), 3))["gradients"]
    assert {name: len(state["h"]) for name, state in found.items()} == {
        **{f"encoder.ahead.{layer}": 4 for layer in (0, 1)},
        **{f"decoder.{layer}": 3 for layer in (0, 1)},
    }
    p = model.project(model(source, target[:, :-1]).features[0, -1]).softmax(-1)
    p[EOS] -= 1
    assert found["decoder.1"]["h"][-1] == pytest.approx(float((p @ model.output.weight).detach().norm()), rel=1e-4)


def test_rows_that_have_ended_do_not_count() -> None:
    """A short sentence beside a long one: at the steps that only the long one has, the mean is its own."""
    model = make_model("sutskever-gru")
    sources, targets = [[4, 5, 6], [5, 5, 5]], [[7, 8, 9, 4], [6]]

    def measured(rows: slice) -> list[float]:
        batch = Batch(make_source(sources[rows]), make_target(targets[rows]), np.arange(2), 7)
        found: list[float] = flow(model, batch)["gradients"]["decoder.1"]["h"]
        return found

    both, long, short = measured(slice(2)), measured(slice(1)), measured(slice(1, 2))
    means = [*((one + other) / 2 for one, other in zip(long, short, strict=False)), *long[2:]]
    assert both == pytest.approx(means, rel=1e-3)


@pytest.mark.parametrize("name", RECURRENT)
def test_every_recurrent_model_shows_them(name: str) -> None:
    """Of both directions of an encoder, all layers, and an LSTM's c; and nothing of the model changes."""
    target = make_target([[4, 5, 6], [7, 8, 9]])
    if name in MODELS:
        model: Any = make_model(name)
        batch = Batch(make_source([[4, 5], [6, 7]]), target, np.arange(2), 8)
    else:
        model, batch = make_captioner(name), Batch(random_images(2, seed=1), target, np.arange(2), 8)
    before = copy.deepcopy(model.state_dict())
    model = of_fast_parts(model).train()
    check(model)
    found = flow(model, batch)
    bare = isinstance(model, ShowAttendTell | Bahdanau)  # a cell with input products of its own
    cells = sum(isinstance(module, Recurrence) for module in model.modules()) + bare
    assert len(found["gradients"]) == len(found["singular_values"]) == cells
    assert all(norm > 0 for state in found["gradients"].values() for norm in state["h"])
    assert any(name.startswith("encoder.back") for name in found["gradients"]) == (
        name.startswith(("bahdanau", "luong")) and "one-way" not in name
    )
    if "lstm" in name or name == "luong":
        assert all(state.keys() == {"h", "c"} for state in found["gradients"].values())
    for values in found["singular_values"].values():
        assert values[0] > 0
    assert model.training and all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_singular_values_of_an_orthogonal_recurrence_are_its_gain() -> None:
    """Of tanh near 0, whose derivative is 1."""
    (found,) = flow(reader("rnn", gain=0.7), text(10))["singular_values"].values()
    assert found == pytest.approx([0.7] * 64, rel=0.01)


def test_gains_and_forget_biases_are_refused_where_there_is_none() -> None:
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


def test_what_a_run_recorded_is_read_again(tmp_path: Path) -> None:
    """Without a last line that was cut short; any other line that is none is refused."""
    whole = {"step": 3, "gradients": {"decoder.0": {"h": [0.5, 1.0]}}, "singular_values": {"decoder.0": [1.0]}}
    path, line = tmp_path / "gradient_flow.jsonl", json.dumps(whole)
    path.write_text(f"{line}\n{line[:20]}")
    assert read(path) == [whole]
    for bad in (line[:20], '{"step": 1, "gradients": {"a": 3}}', "[1]", '{"gradients": {}, "singular_values": {}}'):
        path.write_text(f"{line}\n{bad}\n{line}\n")
        with pytest.raises(InputError, match=r"gradient_flow\.jsonl line 2 is not a measurement\."):
            read(path)


def test_what_the_page_says_of_untrained_cells() -> None:
    """A fresh GRU's gradient vanishes, and that of an RNN with a gain of 1.1 grows far less than 1.1 a step."""
    vanishing, growing = norms(reader("gru"), text(60)), norms(reader("rnn", gain=1.1), text(60))
    assert vanishing[0] < 1e-4 * vanishing[-1]
    assert growing[0] < 1.1**60 / 2 * growing[-1]


def test_gradients_too_small_for_single_precision_squares_are_measured() -> None:
    """At a gain of 0.3 that of the first step is about 1e-31: a straight line on a logarithmic scale down to there."""
    found = np.log10(norms(reader("rnn", gain=0.3), text(60)))
    assert np.isfinite(found).all() and np.allclose(np.diff(found), -np.log10(0.3), atol=0.1)


def test_a_state_that_has_exploded_leaves_a_gap() -> None:
    model = reader("rnn")
    with torch.no_grad():
        next(iter(cells_of(model).values())).recurrent.weight.fill_(torch.inf)
    found = flow(model, text(10))
    assert list(found["singular_values"].values()) == [[]]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("settings", [{"gain": torch.inf}, {"forget_bias": torch.nan}])
def test_first_weights_are_finite(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"must be a finite number, not (inf|nan)"):
        reader("lstm", **settings)
