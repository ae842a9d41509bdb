"""How much of the loss's gradient reaches each time step: vanishing and exploding gradients made visible.

The loss here is −log p of only each example's last token, so that the gradient at step t has passed through all later
steps: ‖∂loss/∂h_t‖ shows the product of Jacobians (Bengio et al. 1994; Pascanu et al. 2013). The gradient with respect
to an LSTM's c_t includes what passes through h_t.

The singular values are those of one factor of the product, at the middle step of one example: the recurrent Jacobian
∂s_t/∂s_{t−1} of a cell whose input is held fixed, where s is h, or (h, c) for an LSTM.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqtool.data.batches import Batch, Examples
from seqtool.errors import InputError
from seqtool.models.cells import Cell, State, cells_of
from seqtool.models.contract import EncoderDecoder
from seqtool.models.parts import plain_copy
from seqtool.models.tokens import PAD
from seqtool.runtime.files import read_json_lines
from seqtool.training.recording import FLOW, GRADIENT_FLOW, append_record
from seqtool.view import plots
from seqtool.view.report import rounded

MAX_EXAMPLES = 64
MIN_PLOTTED = 6  # a figure shows at least this number of measurements, if the run has as many

Calls = list[tuple[Tensor, State, State]]  # each step of a cell: its input, and its state before and after


def check(model: EncoderDecoder[Any]) -> None:
    """Raise InputError for a model without recurrent cells."""
    if not cells_of(model):
        name = type(model).__name__
        raise InputError(f"train.gradient_flow=true is for recurrent models, and {name} has no cells: leave it out.")


def measure(run: Path, model: EncoderDecoder[Any], examples: Examples, device: torch.device, step: int) -> None:
    """Measure the gradient flow, append it to the run's `gradient_flow.jsonl`, and plot it beside some earlier
    measurements, all on the same training examples. A step is measured only once.
    """
    records = read(run)
    if records and records[-1]["step"] == step:
        return
    records.append({"step": step, **flow(model, examples.probes(MAX_EXAMPLES).to(device))})
    append_record(run / FLOW, records[-1])
    figure = run / GRADIENT_FLOW
    with plots.optional_figure(figure):
        plots.gradient_flow({f"step {record['step']:,}": record for record in evenly_spaced(records)}, figure)


def evenly_spaced(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenly spaced measurements to plot, including the last."""
    stride = max(1, len(records) // MIN_PLOTTED)
    return records[::-stride][::-1]


def read(run: Path) -> list[dict[str, Any]]:
    """Read the measurements of a run, which may have none. Raises InputError if the file is damaged."""
    return read_json_lines(run / FLOW, _is_measurement, "is not a measurement") if (run / FLOW).is_file() else []


def _is_measurement(record: dict[str, Any]) -> bool:
    """Whether a record has a step and what `flow` returns."""
    gradients, values = record["gradients"], record["singular_values"]
    columns = [*values.values(), *(column for state in gradients.values() for column in state.values())]
    are_numbers = all(
        isinstance(column, list) and all(isinstance(x, int | float | None) for x in column) for column in columns
    )
    return are_numbers and isinstance(record["step"], int) and gradients.keys() == values.keys()


def flow(model: EncoderDecoder[Any], batch: Batch) -> dict[str, Any]:
    """Measure the gradient flow on a batch, without dropout. Cells are called by their names in the model.

    Returns:
        gradients: for each cell and each tensor of its state, ‖∂loss/∂h_t‖ by time step, in the order in which the cell
            reads: the mean over the examples that the gradient reaches.
        singular_values: for each cell, the singular values of its Jacobian, in decreasing order.
    """
    model = plain_copy(model).eval()
    cells = cells_of(model)
    traces: dict[str, Calls] = {name: [] for name in cells}

    def trace(name: str, _: Any, arguments: tuple[Tensor, State], state: State) -> None:
        traces[name].append((*arguments, state))

    with torch.enable_grad():
        with ExitStack() as stack:
            for name, cell in cells.items():
                stack.enter_context(cell.register_forward_hook(partial(trace, name)))
            output = model(batch.source, batch.inputs)
        last_positions = (batch.labels != PAD).sum(1) - 1
        rows = torch.arange(len(last_positions), device=last_positions.device)
        logits = model.project(output.features[rows, last_positions]).float()
        loss = -logits.log_softmax(-1)[rows, batch.labels[rows, last_positions]].sum()
        states = [tensor for calls in traces.values() for *_, state in calls for tensor in state]
        state_gradients = iter(torch.autograd.grad(loss, states, allow_unused=True))
        gradients: dict[str, dict[str, list[float | None]]] = {}
        for name, calls in traces.items():
            steps = [[next(state_gradients) for _ in state] for *_, state in calls]
            tensors = zip("hc", zip(*steps, strict=True), strict=False)  # c only for an LSTM
            gradients[name] = {letter: _mean_norms(by_step) for letter, by_step in tensors}
        length = int(last_positions[0]) + 1
        singular_values = {name: _singular_values(cells[name], calls, length) for name, calls in traces.items()}
    return {"gradients": gradients, "singular_values": singular_values}


def _mean_norms(gradients: Sequence[Tensor | None]) -> list[float | None]:
    """The mean norm at each time step over the rows with a gradient, which is exactly 0 after a row's last token."""
    norms = []
    for gradient in gradients:
        # in double precision: in single precision, squares of small gradients underflow
        row_norms = torch.zeros(1) if gradient is None else gradient.cpu().double().norm(dim=-1)
        reached = row_norms[row_norms != 0]  # includes what is not a number
        norms.append(rounded(float(reached.mean())) if len(reached) else 0.0)
    return norms


def _singular_values(cell: Cell, calls: Calls, length: int) -> list[float | None]:
    """The singular values of ∂s_t/∂s_{t−1} in the first row, at the middle of its `length` targets or of its source;
    empty if the state has exploded.
    """
    inputs, states_before, _ = calls[min(length, len(calls)) // 2]
    x, state = inputs[:1].detach(), [tensor[:1].detach() for tensor in states_before]
    sizes = [tensor.shape[1] for tensor in state]
    differentiate = torch.func.jacrev(lambda s: torch.cat(cell(x, s.split(sizes, -1)), -1)[0])
    jacobian = differentiate(torch.cat(state, -1))[:, 0].detach()
    if not jacobian.isfinite().all():
        return []
    return [rounded(float(value)) for value in torch.linalg.svdvals(jacobian.cpu().double())]
