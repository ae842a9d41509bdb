"""Mixed precision (AMP): in which type matrices are multiplied. Gradients are scaled in `training/updates.py`."""

import torch

from seqtool.errors import InputError

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(device: torch.device, precision: str) -> None:
    """Raise InputError where the device cannot compute in this precision."""
    if precision not in PRECISIONS:
        raise InputError(f"Unknown precision '{precision}'; choose from {', '.join(PRECISIONS)}.")
    if precision == "fp16" and device.type == "cpu":
        raise InputError("precision=fp16 needs a GPU; on a CPU use precision=bf16 or fp32.")


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Mixed precision: matrix products in `precision`; torch keeps what needs more, such as the softmax, in fp32."""
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
