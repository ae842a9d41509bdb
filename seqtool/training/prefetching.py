"""Batches made ahead of their use."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from seqtool.data.batches import Batch, Indices
from seqtool.runtime import distributed

AHEAD = 2  # batches that are being made or waiting
DEVICES = ("cuda",)  # devices that compute asynchronously


class Prefetcher:
    """Makes this process's shards of the batches of a training split. Inside its `with` block a thread prepares the
    next ones in pinned memory, from which they are copied to the GPU without waiting for it.

    On a CPU, and outside the block, `take` makes each batch when it is asked for: with a thread, an update took 124 ms
    of a CPU's time instead of 119 (RNNsearch of 64 units, 64 sentences, one thread).
    """

    def __init__(self, collate: Callable[[Indices], Batch], device: torch.device) -> None:
        self._collate = collate
        self._device = device
        self._thread: ThreadPoolExecutor | None = None
        self._coming: deque[tuple[Indices, Future[Batch]]] = deque()
        self._rank, self._processes = distributed.rank(), distributed.size()  # which change while validating

    def __enter__(self) -> "Prefetcher":
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
        """This process's shard of a batch, or the error in making it. A process for which there is no example takes the
        batch's first one, since every process must exchange gradients.

        Args:
            indices: of the whole batch's examples.
            following: the batches after it; the first of them are begun.
        """
        while self._coming and not np.array_equal(self._coming[0][0], indices):  # another batch was announced
            self._coming.popleft()[1].cancel()
        begun = self._coming.popleft()[1] if self._coming else None
        if self._thread is not None:
            for later in following[len(self._coming) : AHEAD]:
                self._coming.append((later, self._thread.submit(self._make, later)))
        return self._make(indices) if begun is None else begun.result()

    def _make(self, indices: Indices) -> Batch:
        rows = indices[self._rank :: self._processes] if self._rank < len(indices) else indices[:1]
        batch = self._collate(rows)
        if self._device.type != "cuda":
            return batch
        with torch.cuda.device(self._device):  # a new thread uses the first GPU
            return batch.pinned()
