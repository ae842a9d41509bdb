"""Makes batches ahead of their use."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from seqtool.data.batches import Batch, Indices
from seqtool.runtime import distributed

MAX_PENDING = 2  # the number of batches being made or waiting to be used
ASYNCHRONOUS_DEVICES = ("cuda",)


class Prefetcher:
    """Makes this process's shards of the batches of a training split. Inside its `with` block a thread prepares the
    next shards in pinned memory, from which they are copied to the GPU asynchronously.

    On a CPU, and outside the block, `take` makes the batch itself: with a thread, an update took 124 ms of CPU time
    instead of 119 (RNNsearch of 64 units, 64 sentences, one thread).
    """

    def __init__(self, collate: Callable[[Indices], Batch], device: torch.device) -> None:
        self._collate = collate
        self._device = device
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[Indices, Future[Batch]]] = deque()
        # read once, since both change during validation
        self._rank, self._process_count = distributed.rank(), distributed.size()

    def __enter__(self) -> "Prefetcher":
        if self._device.type in ASYNCHRONOUS_DEVICES:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        return self

    def __exit__(self, *error: object) -> None:
        """Drop unused batches and wait for the thread to end."""
        self._pending.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def take(self, indices: Indices, following: Sequence[Indices]) -> Batch:
        """Return this process's shard of a batch, or raise the error from making it. A process without an example gets
        the batch's first example, since every process must exchange gradients.

        indices: the indices of the whole batch's examples
        following: the indices of the batches after it; the thread prepares the first `MAX_PENDING`
        """
        while self._pending and not np.array_equal(self._pending[0][0], indices):  # another batch was expected
            self._pending.popleft()[1].cancel()
        future = self._pending.popleft()[1] if self._pending else None
        if self._thread is not None:
            for next_indices in following[len(self._pending) : MAX_PENDING]:
                self._pending.append((next_indices, self._thread.submit(self._make, next_indices)))
        return self._make(indices) if future is None else future.result()

    def _make(self, indices: Indices) -> Batch:
        rows = indices[self._rank :: self._process_count] if self._rank < len(indices) else indices[:1]
        batch = self._collate(rows)
        if self._device.type != "cuda":
            return batch
        with torch.cuda.device(self._device):  # a new thread uses the first GPU
            return batch.pinned()
