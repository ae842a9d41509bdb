"""One update of a model's parameters: the gradient of a group of batches, clipped, and a step of the optimiser; and the
batches after it, made ready by a thread meanwhile.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from seqtool.data.batches import Batch, Indices
from seqtool.decoding import tree
from seqtool.errors import out_of_memory
from seqtool.models.contract import EncoderDecoder
from seqtool.runtime import distributed
from seqtool.runtime.devices import Machine
from seqtool.runtime.precision import autocast
from seqtool.training.losses import TrainingLoss
from seqtool.training.optimisation import Optimisation
from seqtool.training.train_settings import TrainSettings

OPTIMISER, BASELINE, CARRIED = "optimiser.", "loss.baseline", "carried."  # in a checkpoint's names
BATCHES = 2  # batches that are being made or waiting
DEVICES = ("cuda",)  # devices that compute asynchronously
STEP_TOO_LARGE = (
    "in the optimiser's step, which keeps numbers of its own for every parameter: start a run with a lower "
    "train.batch_size, with a smaller model (model.*), or with optim=sgd, which keeps none."
)


class Update(NamedTuple):
    """The numbers reported for an update: its batches' summed −log p in nats, target tokens, and gradient norm."""

    nll: Tensor
    tokens: int
    norm: Tensor


@dataclass
class Updates:
    """Updates of a model from the sentences or images of a training split, in all processes together."""

    model: EncoderDecoder[Any]
    split: Any
    optimisation: Optimisation
    _: KW_ONLY
    settings: TrainSettings
    machine: Machine

    def __post_init__(self) -> None:
        device = self.machine.device
        self.ahead = Ahead(self.split.collate, device)
        self._carried: Any = None  # the state that the next batch of the same streams starts from
        self.loss = TrainingLoss(self.model, self.settings.label_smoothing).to(device)
        self._parallel = distributed.DataParallel(self.loss)
        self._scaler = torch.amp.GradScaler(device.type, enabled=self.machine.precision == "fp16")

    def update(
        self, group: Sequence[Indices], too_large: Callable[[Batch], str], following: Sequence[Indices] = ()
    ) -> Update | None:
        """One step over these batches; None if the loss or its gradient is not finite: parameters stay unchanged, and
        streams continue from a fresh state.

        `too_large` is the end of the sentence about a batch that does not fit into memory; `following` are the batches
        of the next step, as far as they are known.
        """
        sentences = sum(len(indices) for indices in group)
        tokens = sum(self.split.labels(indices) for indices in group)
        divisor = tokens if self.settings.normalise == "tokens" else sentences
        optimiser, clip_norm = self.optimisation.optimiser, self.settings.clip_norm
        self.loss.train()
        optimiser.zero_grad(set_to_none=True)
        self._parallel.prepare()
        sums = torch.zeros(3, device=self.machine.device)  # −log p; rewards and their number
        rows = [_rows(indices) for indices in (*group, *following)]
        for place, indices in enumerate(group, start=1):
            batch = self.ahead.take(rows[place - 1], rows[place:])
            sums += self._backward(indices, batch, divisor, too_large, last=place == len(group))
        nll, reward, rewards = distributed.total(sums)
        with out_of_memory(lambda: STEP_TOO_LARGE, self.machine.device):
            self._scaler.unscale_(optimiser)  # so that clipping sees the true norm
            norm = nn.utils.get_total_norm([one.grad for one in self.model.parameters() if one.grad is not None])
            length, finite = torch.stack([norm, nll.isfinite()]).tolist()  # waits for a GPU once
            done = math.isfinite(length) and bool(finite)
            if done:
                if clip_norm is not None and length > clip_norm:
                    nn.utils.clip_grads_with_norm_(self.model.parameters(), clip_norm, norm)
                self._scaler.step(optimiser)
        if done:
            self.loss.observe(reward / rewards)
        else:
            self._carried = None
        self._scaler.update()  # lowers the scale after an infinite gradient
        return Update(nll, tokens, norm) if done else None

    def _backward(
        self, indices: Any, batch: Batch, divisor: int, too_large: Callable[[Batch], str], *, last: bool
    ) -> Tensor:
        """Add the gradient of this process's share of a batch; returns its −log p, and rewards and their number."""
        device = self.machine.device
        mine = distributed.shard(indices)
        weight = distributed.size() if len(mine) else 0  # gradients are averaged over processes
        with self._parallel.exchanging(last=last), out_of_memory(partial(too_large, batch), device):
            with autocast(device, self.machine.precision):
                loss = self._parallel(batch.to(device), self._carried if batch.continues else None)
            self._carried = loss.state
            self._scaler.scale(loss.total * weight / divisor).backward()
        if not len(mine):
            return torch.zeros(3, device=device)
        reward = torch.full_like(loss.nll, math.nan) if loss.reward is None else loss.reward
        finite = reward.isfinite()
        return torch.stack([loss.nll, reward.where(finite, torch.zeros_like(reward)), finite.to(reward.dtype)])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that the next update depends on besides parameters and random numbers: tensors by name, and scalars."""
        tensors: dict[str, Tensor] = {BASELINE: self.loss.baseline, **self._streams()}
        scalars: dict[str, Any] = {}
        for index, state in self.optimisation.optimiser.state_dict()["state"].items():
            for key, value in state.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"{OPTIMISER}{index}.{key}"] = value
        return tensors, {"optimiser": scalars, "scaler": self._scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        """Resume from such a state. Raises various errors if it does not fit."""
        optimiser = self.optimisation.optimiser
        state: dict[str, Any] = {"state": {}, "param_groups": optimiser.state_dict()["param_groups"]}
        for name, value in [*tensors.items(), *scalars["optimiser"].items()]:
            if name.startswith(OPTIMISER):
                _, index, key = name.split(".", 2)
                state["state"].setdefault(int(index), {})[key] = value
        optimiser.load_state_dict(state)
        for parameter, moments in optimiser.state.items():
            for value in moments.values():
                if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                    raise ValueError("a moment of another shape than its parameter")
        if scalars["scaler"]:
            self._scaler.load_state_dict(dict(scalars["scaler"]))
        self.loss.baseline.copy_(tensors[BASELINE])
        carried = [tensors[name] for name in sorted(tensors) if name.startswith(CARRIED)]
        if carried:
            mine = (torch.as_tensor(_rows(tensor)).to(self.machine.device) for tensor in carried)
            self._carried = tree.rebuilt(self.model.encode(None)[1], mine)

    def _streams(self) -> dict[str, Tensor]:
        """The state that is carried over to the next batch, with a row for each stream of all processes."""
        found = {}
        for i, mine in enumerate(tree.leaves(self._carried)):
            parts = distributed.gathered(mine.cpu())
            whole = mine.new_empty(len(parts) * max(map(len, parts)), *mine.shape[1:], device="cpu")
            for process, part in enumerate(parts):
                whole[process :: len(parts)][: len(part)] = part
            found[f"{CARRIED}{i:03d}"] = whole[: self.split.rows].clone()  # not those of processes without streams
        return found


class Ahead:
    """Makes a training split's batches. Inside its `with` block a thread prepares the next ones in pinned memory, from
    which they are copied to the GPU without waiting for it. `make` must not draw random numbers.

    On a CPU, and outside the block, `take` makes each batch when it is asked for: with a thread, an update took 124 ms
    of a CPU's time instead of 119 (RNNsearch of 64 units, 64 sentences, one thread).
    """

    def __init__(self, make: Callable[[Indices], Batch], device: torch.device) -> None:
        self._make = make
        self._device = device
        self._thread: ThreadPoolExecutor | None = None
        self._coming: deque[tuple[Indices, Future[Batch]]] = deque()

    def __enter__(self) -> "Ahead":
        if self._device.type in DEVICES:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        return self

    def __exit__(self, *error: object) -> None:
        """Drop batches that were not used; the thread has ended when this returns."""
        self._coming.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def take(self, indices: Indices, following: Sequence[Indices]) -> Batch:
        """The batch of these examples, or the error in making it; also starts on the first of the `following`."""
        while self._coming and not np.array_equal(self._coming[0][0], indices):  # another batch was announced
            self._coming.popleft()[1].cancel()
        begun = self._coming.popleft()[1] if self._coming else None
        if self._thread is not None:
            for one in following[len(self._coming) : BATCHES]:
                self._coming.append((one, self._thread.submit(self._pinned, one)))
        return self._make(indices) if begun is None else begun.result()

    def _pinned(self, indices: Indices) -> Batch:
        batch = self._make(indices)
        if self._device.type != "cuda":
            return batch
        with torch.cuda.device(self._device):  # a new thread uses the first GPU
            return batch.pinned()


def _rows(indices: Any) -> Indices:
    """This process's share of a batch, or one example if it has none: every process must exchange gradients."""
    mine: Any = distributed.shard(indices)
    rows: Indices = mine if len(mine) else indices[:1]
    return rows
