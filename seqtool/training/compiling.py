"""`compile=true`: graphs that torch.compile makes compute the losses of training batches.

A graph is for one shape, so sources and targets are padded to few lengths (padding changes nothing). Outside of the
graph are what has another size in every batch, the image encoder and the number of rows that draw in hard attention,
and the draws.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor
from torch.nn import functional as F

from seqtool.errors import InputError, is_out_of_memory
from seqtool.models import tree
from seqtool.models.inputs import Annotations, Images, Source
from seqtool.models.tokens import PAD
from seqtool.runtime import distributed
from seqtool.runtime.log import log
from seqtool.training.losses import Loss, TrainingLoss
from seqtool.training.saving import TrainSettings

BACKEND = "inductor"
MAX_GRAPHS = 16  # in a run: an unrolled recurrence takes up to minutes to compile


def check_compiling(settings: TrainSettings) -> None:
    """Raise InputError for settings whose batches have no few shapes, or whose losses have no graph."""
    for name, needed in (("objective", "cross_entropy"), ("batch_by", "sentences")):
        if (value := getattr(settings, name)) != needed:
            raise InputError(f"compile=true needs train.{name}={needed}, not {value}: change it, or set compile=false.")
    if distributed.size() > 1:
        raise InputError(f"compile=true is for one process, not {distributed.size()}: set compile=false.")


class Graphs:
    """A loss by compiled graphs, one for each shape: at most `MAX_GRAPHS`. Other batches are computed without one, and
    so are those with fewer rows than others, such as an epoch's last.
    """

    def __init__(self, loss: TrainingLoss) -> None:
        self.model: Any = loss.model
        self.plain = loss.compute
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it looks for a CUDA that is not needed
        torch._dynamo.reset()  # graphs of earlier runs of this process would count, since the code is the same
        self.compiled = torch.compile(loss.compute, backend=BACKEND, fullgraph=True, dynamic=False)
        self.shapes: set[Any] = set()
        self.rows, self.batches, self.without, self.seconds = 0, 0, 0, 0.0

    def facts(self) -> dict[str, float]:
        """The number of graphs, and the seconds of the batches that compiled them, forward and backward."""
        return {"graphs": len(self.shapes), "compile_seconds": round(self.seconds, 1)}

    def __str__(self) -> str:
        count, seconds = self.facts().values()
        without = f"{self.without:,} of {self.batches:,} batches were computed without one"
        return f"Compiled {count} of at most {MAX_GRAPHS} graphs in {seconds} s; {without}."

    def __call__(self, source: Any, inputs: Tensor, labels: Tensor, state: Any, *, carries: bool) -> Loss:
        """Compute what `TrainingLoss.compute` does."""
        if isinstance(source, Images):
            source = Annotations(self.model.annotations(source))
        rows = self.model.draw_rows(inputs) if getattr(self.model, "hard", False) else None
        if not carries:  # the state of streams may not pass through padding, and their targets have one length
            inputs, labels = self._padded(inputs), self._padded(labels)
            if isinstance(source, Source):
                source = replace(source, tokens=self._padded(source.tokens))
            if rows is not None:
                rows = replace(rows, uniform_noise=self._padded(rows.uniform_noise))
        arguments = source, inputs, labels, state, rows
        shape = carries, state is None, *(tensor.shape for tensor in tree.leaves(arguments))
        self.rows, self.batches, is_new = max(self.rows, len(inputs)), self.batches + 1, shape not in self.shapes
        if is_new and (len(self.shapes) == MAX_GRAPHS or len(inputs) < self.rows):
            self.without += 1
            return self.plain(*arguments, carries=carries)
        self.shapes.add(shape)
        if is_new:
            number, seconds = self.facts().values()
            others = f"those before took {seconds:,.0f} s" if number > 1 else "it takes from seconds to minutes"
            log.info("Compiling graph %d of at most %d: %s.", number, MAX_GRAPHS, others)
        # torch warns that annotation vectors, computed outside, are no leaves of a graph, and that TF32 is off
        with torch._dynamo.config.patch(cache_size_limit=2 * MAX_GRAPHS), catch_warnings(action="ignore"):
            return self.compiled(*arguments, carries=carries)

    @contextmanager
    def compiling(self, stop: Any) -> Iterator[None]:
        """Time the compilation of a graph and explain why it fails, in a context of the forward and the backward pass.

        stop: its attribute `requested` says whether a signal has asked the run to stop. Ctrl-C also ends the compiler,
            so the run is then stopped at once.
        """
        count, started = len(self.shapes), time.perf_counter()
        try:
            yield
            if len(self.shapes) > count:
                self.seconds += time.perf_counter() - started
        except RuntimeError as error:
            if len(self.shapes) == count or is_out_of_memory(error):
                raise
            if stop.requested:
                raise KeyboardInterrupt from error
            reason = (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
            raise InputError(
                f"compile=true: torch.compile cannot compile {type(self.model).__name__} here ({reason}): set "
                "compile=false, or install the compiler that it lacks (a C++ compiler, and for a GPU triton)."
            ) from error

    def _padded(self, x: Tensor) -> Tensor:
        """Pad N×t to one of few lengths: 8, 16, 24, 32, 48, 64, 96, 128 …, two between powers of two."""
        length = x.shape[1]
        step = 1 << max(3, (length - 1).bit_length() - 2)
        padded = -(-length // step) * step
        return F.pad(x, (0, max(0, min(padded, self.model.max_positions or padded) - length)), value=PAD)
