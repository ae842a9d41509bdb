"""How the processes of a group tell each other, and the user, why one of them fails.

A process that fails records the cause in the store through which all have found each other. torchrun's own store
outlives them, so each machine reports the cause once, from any of its processes, and does not repeat it when torchrun
restarts all of them, as it does whatever their exit status.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from seqtool.errors import InputError

STORE_TIMEOUT = timedelta(seconds=10)

_store: Any = None  # of this process's group

log = logging.getLogger("seqtool")


class LostConnectionError(InputError):
    """The group has failed, as far as is known not because of the user's input."""


def check_launcher() -> None:
    """Refuse a launcher that is not torchrun: all its processes would do the same work.

    srun only causes a warning: it sets no rank for torch, and may be starting torchrun itself or different commands.
    """
    sizes = ["OMPI_COMM_WORLD_SIZE", *(["WORLD_SIZE"] if "RANK" in os.environ else [])]
    for variable in sizes:
        if (size := os.environ.get(variable, "1")).isdecimal() and int(size) > 1:
            raise InputError(
                f"{variable}={size} says that another launcher than torchrun started {size} processes, which would all "
                f"do the same: start torchrun --nproc-per-node={size} -m seqtool … in its place, or unset {variable} "
                "for a process by itself."
            )
    size = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if size.isdecimal() and int(size) > 1 and os.environ.get("SLURM_PROCID") == "0":
        log.warning(
            "srun started %s tasks, each of which works by itself: to work together they need torchrun, one a machine.",
            size,
        )


def use_store(store: Any) -> None:
    global _store
    _store = store


def record_cause(error: Exception) -> None:
    """Record why this process stops, unless another process has recorded a cause."""
    if _store is None:
        return
    reports_itself = isinstance(error, InputError)
    text = str(error) if reports_itself else f"{type(error).__name__}: {_first_sentence(error)}"
    with suppress(RuntimeError):  # the store went with its process
        _store.set_timeout(STORE_TIMEOUT)
        _store.compare_set(_key("cause"), "", json.dumps([reports_itself, text]))


def claim(key: Callable[[], str], value: str) -> bool:
    """Whether no other process has recorded another value under this key, which from now on has this one."""
    return _store is None or bool(_store.compare_set(_key(key()), "", value).decode() == value)


def explanation(error: Exception, patience: timedelta | None) -> InputError:
    """Why waiting for another process failed: the cause it recorded, or torch's message.

    patience: how long it was waited for; None before all have connected.
    """
    reports_itself, cause = False, ""
    if _store is not None:
        with suppress(RuntimeError):
            _store.set_timeout(STORE_TIMEOUT)
            if _store.check([_key("cause")]):
                reports_itself, cause = json.loads(_store.get(_key("cause")))
    if reports_itself:
        return InputError(cause)
    reason = _first_sentence(error)
    if cause:
        sentence = f"Lost the connection to another process, which stopped with {cause}."
    elif re.search("timed? ?out", reason, re.IGNORECASE) is not None:
        if patience is None:
            advice = "start torchrun on all --nnodes machines, with the same address"
            sentence = f"Not all processes connected ({reason}): {advice}."
        else:
            seconds = int(patience.total_seconds())
            time = f"{seconds // 60} minutes" if seconds >= 60 else f"{seconds} seconds"
            sentence = f"Another process did not answer within {time} ({reason}): it hangs or is much slower."
    elif "NCCL" in reason:
        sentence = f"NCCL failed ({reason}): with NCCL_DEBUG=INFO it says more."
    else:
        sentence = f"Lost the connection to another process ({reason}): torchrun says which one stopped, and how."
    return LostConnectionError(sentence)


def already_reported(error: Exception, sentence: str) -> bool:
    """Whether another process on this machine has reported the error, possibly before torchrun restarted all of them;
    from now on it counts as reported.

    If torchrun keeps no store of its own (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), nothing is known about earlier
    processes, nor about others before they have joined: then the first process of each machine reports it.
    """
    machine = os.environ.get("GROUP_RANK", "0")
    key = f"seqtool/reported/{machine}/{hashlib.sha256(sentence.encode()).hexdigest()}"
    if isinstance(error, LostConnectionError):  # each loss is reported
        key = _key(f"lost/{machine}")
    try:
        store = _store
        if store is None:
            if not store_stays():
                return os.environ.get("LOCAL_RANK", "0") != "0"
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(address, port, is_master=False, timeout=STORE_TIMEOUT)  # type: ignore[attr-defined]
        return bool(store.add(key, 1) > 1)
    except RuntimeError:
        return False


def store_stays() -> bool:
    """Whether the store is torchrun's own, which restarted processes share."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _key(name: str) -> str:
    """A key in the store for these processes, different from that of processes restarted in their place."""
    return f"seqtool/{os.environ['TORCHELASTIC_RESTART_COUNT']}/{name}" if store_stays() else f"seqtool/{name}"


def _first_sentence(error: Exception) -> str:
    """The error's first sentence, without the place in torch's source."""
    line = (str(error).splitlines() or [""])[0]
    return re.sub(r"^\[\S+:\d+\] *", "", line).split(". ")[0].rstrip(". ")
