"""All that the next update depends on besides the parameters and the run's progress: what a resumed run restores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqtool.decoding import tree
from seqtool.runtime import distributed
from seqtool.training.checkpoint import BASELINE, CARRIED, CPU_RANDOM, CUDA_RANDOM, OPTIMISER
from seqtool.training.losses import TrainingLoss


@dataclass
class TrainingState:
    """The optimiser's moments, the loss scale, hard attention's baseline (in `loss`), the state that streams carry
    over, and torch's random generators. In a checkpoint they have the names that `training.checkpoint` lists.

    rows: the parallel streams of all processes (`Examples.rows`). carried: this process's part of the state that their
    next batch starts from; None at first, after a step that was skipped, and for independent examples.
    """

    loss: TrainingLoss
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    rows: int | None
    device: torch.device
    carried: Any = None

    def to_save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and other values. All processes take part."""
        tensors: dict[str, Tensor] = {BASELINE: self.loss.baseline, **self._carried_by_all()}
        scalars: dict[str, Any] = {}
        for index, moments in self.optimiser.state_dict()["state"].items():
            for key, value in moments.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"{OPTIMISER}{index}.{key}"] = value
        random = {CPU_RANDOM: torch.get_rng_state()}
        if self.device.type == "cuda":
            random[CUDA_RANDOM] = torch.cuda.get_rng_state(self.device)
        for process, states in enumerate(distributed.gathered(random)):
            tensors |= {_of_process(name, process): state for name, state in states.items()}
        return tensors, {"optimiser": scalars, "scaler": self.scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        """Take over what `to_save` gave. Various errors are raised if it does not fit the model."""
        state: dict[str, Any] = {"state": {}, "param_groups": self.optimiser.state_dict()["param_groups"]}
        for name, value in [*tensors.items(), *scalars["optimiser"].items()]:
            if name.startswith(OPTIMISER):
                _, index, key = name.split(".", 2)
                state["state"].setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict(state)
        for parameter, moments in self.optimiser.state.items():
            for value in moments.values():
                if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                    raise ValueError("a moment of another shape than its parameter")
        if scalars["scaler"]:
            self.scaler.load_state_dict(dict(scalars["scaler"]))
        self.loss.baseline.copy_(tensors[BASELINE])
        process = distributed.rank()  # one that the run did not have before keeps its seeded generators
        if carried := [tensors[name] for name in sorted(tensors) if name.startswith(CARRIED)]:
            has_rows = process < len(carried[0])
            rows = slice(process, None, distributed.size()) if has_rows else slice(1)  # as `Prefetcher.take`
            shards = (tensor[rows].to(self.device) for tensor in carried)
            self.carried = tree.each(lambda _: next(shards), self.loss.model.encode(None)[1])
        if (random := tensors.get(_of_process(CPU_RANDOM, process))) is not None:
            torch.set_rng_state(random)
        if (random := tensors.get(_of_process(CUDA_RANDOM, process))) is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(random, self.device)

    def _carried_by_all(self) -> dict[str, Tensor]:
        """The tensors of the carried state, with a row for each stream of all processes."""
        tensors = {}
        for i, ours in enumerate(tree.leaves(self.carried)):
            parts = distributed.gathered(ours.cpu())
            whole = ours.new_empty(len(parts) * max(map(len, parts)), *ours.shape[1:], device="cpu")
            for process, part in enumerate(parts):
                whole[process :: len(parts)][: len(part)] = part
            tensors[f"{CARRIED}{i:03d}"] = whole[: self.rows].clone()  # not those of processes without streams
        return tensors


def _of_process(name: str, process: int) -> str:
    """The name of a process's random state in a checkpoint."""
    return name if process == 0 else f"{name}.{process}"
