"""Signals that ask a run to stop: it finishes its step or validation first."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from seqtool.runtime import distributed


@dataclass
class Stop:
    """Whether a signal has asked for it."""

    asked: bool = False


@contextmanager
def noted() -> Iterator[Stop]:
    """Notes signals to stop; a second SIGINT stops at once.

    SLURM can send SIGUSR1 before a job's time is up; SIGHUP comes when the terminal is closed.
    """
    stop = Stop()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def note(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        for terminal in terminals if number == signal.SIGHUP else ():
            if not os.isatty(terminal):  # it has gone: writing to it fails, and would end the run
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, terminal)
                os.close(nowhere)
        if not stop.asked and distributed.is_first():  # bypasses Python's buffers, which may be in use
            with suppress(OSError):
                os.write(2, b"\nStopping after this step or validation; Ctrl-C from now on stops at once.\n")
        stop.asked = True

    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
        signals.append(signal.SIGHUP)
    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # not the main thread: signals are not ours to handle
        before = {number: signal.signal(number, note) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
