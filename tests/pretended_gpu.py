"""A simulated GPU: its tensors claim to be on cuda:0, while their numbers are on the CPU.

The tests marked `gpu` use it where there is no real GPU, and so notice operations that a GPU would refuse. Autograd,
autocast and every `x.is_cuda` behave as on a GPU. As there, the following raise errors: operands on two devices,
`.numpy()`, states that are not contiguous for cuDNN, lengths on the GPU for packing and, on request, float64, which
Apple's GPUs lack. GPU kernels, memory and speed are not imitated.

What is counted, since each costs a GPU some microseconds whatever the tensors' size: `launches`, the kernels that are
started, by operation, and `waits`, the times that the host waits for a result, by operation. An operation is counted as
one kernel, or as many as `KERNELS` says, views and new memory as none, and an optimiser's operation on a list of
tensors as one for every hundred. cuDNN's recurrences, whose kernels depend on the card, are counted separately, in
`recurrences`. So the numbers are lower bounds, made to compare two versions of the code.
"""

import atexit
import contextlib
import ctypes
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
OLDEST_TORCH, NEWEST_TORCH = (2, 6), (2, 14)  # the internals of these versions were checked
LIBRARY = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
HEADER = Path(torch.__file__).parent / "include/ATen/detail/AcceleratorHooksInterface.h"
RANDOM_OPERATIONS = re.compile(r"rand|bernoulli|dropout|uniform_|normal_|multinomial|exponential_")
SEQUENCES = (list, tuple)
# The operands of these may be on two devices.
MOVES = ("copy_", "_to_copy", "set_", "_pad_packed_sequence", "_pack_padded_sequence_backward")
RECURRENCES = (torch.lstm, torch.gru, torch.rnn_tanh)
# Operations that start no kernel, beside views: they return new memory or a tensor's description.
WITHOUT_KERNEL = re.compile(
    r"(new_)?empty(_like|_strided)?|detach|alias|lift(_fresh)?|set_|_unsafe_view|_reshape_alias|resize_"
)
KERNELS = {  # of operations that start several
    **dict.fromkeys(
        ("masked_fill", "index_fill", "constant_pad_nd", "index_add", "index_put", "scatter", "scatter_add"), 2
    ),
    **dict.fromkeys(("slice_backward", "select_backward", "unfold_backward", "native_layer_norm_backward"), 2),
    **dict.fromkeys(("slice_scatter", "select_scatter", "as_strided_scatter", "topk", "sort", "randperm"), 2),
    "embedding_dense_backward": 4,
}
TENSORS_A_KERNEL = 100  # of an operation on a list of tensors
# Operations for which the host waits.
WAITS = re.compile(r"_local_scalar_dense|equal|nonzero|masked_select|is_nonzero|_?unique\w*|item")


def reason_unavailable() -> str | None:
    """The reason why a GPU cannot be simulated here, or None."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if not OLDEST_TORCH <= version <= NEWEST_TORCH:
        return f"the simulated GPU knows torch {OLDEST_TORCH} to {NEWEST_TORCH}, and this is torch {torch.__version__}"
    if sys.platform != "linux":
        return "a GPU is simulated on Linux only"
    if torch.version.cuda is not None and not (LIBRARY.exists() and "hasPrimaryContext" in HEADER.read_text("utf-8")):
        return "this torch asks for a GPU's context in another way"
    return None


class Cuda(Tensor):
    """A tensor on the simulated GPU; `inner` is the tensor on the CPU that holds its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Cuda":
        if inner.dtype == torch.float64 and not _gpus[-1].has_float64:
            raise TypeError("The simulated GPU has no float64.")
        with torch.inference_mode(False):  # views of parameters must not become inference tensors
            wrapper = Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                layout=inner.layout,
                device=CUDA,
            )
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _gpus[-1].run(function, args, kwargs or {})

    def __repr__(self) -> str:
        return f"Cuda({self.inner})"

    def __reduce_ex__(self, protocol: int) -> Any:
        raise RuntimeError("A tensor of the simulated GPU would be pickled.")


_gpus: list["Gpu"] = []
if Cuda not in _foreach_utils._foreach_supported_types:
    _foreach_utils._foreach_supported_types.append(Cuda)  # optimisers update several tensors at once


class Gpu:
    """The simulated GPU: the state of its random numbers, and `run`, which runs an operation on the CPU.

    launches, waits, recurrences: what was counted, by the operation's name
    operations: the number of all operations, those without kernels too, by name
    memory_ends_at: the name of an operation, and which of its coming runs raises torch.OutOfMemoryError, from 1
    """

    def __init__(self, has_float64: bool) -> None:
        self.has_float64 = has_float64
        self.launches, self.waits, self.recurrences = Counter[str](), Counter[str](), Counter[str]()
        self.operations = Counter[str]()
        self.memory_ends_at: tuple[str, int] | None = None
        self.seed(1)

    def counts(self) -> dict[str, int]:
        """The numbers of kernels, of waits and of cuDNN's recurrences until now."""
        return {name: getattr(self, name).total() for name in ("launches", "waits", "recurrences")}

    def count(self, operation: "Operation", operands: list[Tensor], device: torch.device | None) -> None:
        """Count an operation, whose result is on the given device, or on its operands'."""
        name = operation.name
        self.operations[name] += 1
        if self.memory_ends_at is not None and name == self.memory_ends_at[0]:
            self.memory_ends_at = (name, self.memory_ends_at[1] - 1)
            if self.memory_ends_at[1] == 0:
                self.memory_ends_at = None
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        to_cpu = device is not None and device.type == "cpu"
        moves_to_cpu = to_cpu if name == "_to_copy" else name == "copy_" and not isinstance(operands[0], Cuda)
        by_mask = name == "index" and any(x.dtype in (torch.bool, torch.uint8) for x in operands[1:])
        if moves_to_cpu or by_mask or operation.waits:
            self.waits[name] += 1
            if not by_mask and name != "nonzero":
                return
        from_cpu = operands and not isinstance(operands[-1 if name == "copy_" else 0], Cuda)
        is_copy_from_cpu = name in ("copy_", "_to_copy") and from_cpu
        if is_copy_from_cpu or operation.kernels == 0:
            return
        self.launches[name] += -(-len(operands) // TENSORS_A_KERNEL) if operation.takes_lists else operation.kernels

    def seed(self, number: int) -> None:
        self.state = torch.Generator().manual_seed(number).get_state()

    def run(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        operands: list[Tensor] = []
        inner_args = _on_cpu(args, operands)
        inner_kwargs = {key: _on_cpu(value, operands) for key, value in kwargs.items()}
        gpu_tensors = {id(x.inner): x for x in operands if isinstance(x, Cuda)}
        requested_device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if not gpu_tensors and (requested_device is None or requested_device.type == "cpu"):
            return function(*args, **kwargs)
        operation = _operation(function)
        if operation.is_composite:
            with Dispatch():  # under inference_mode, composite operations arrive undecomposed
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _check(function, operation, operands)
        self.count(operation, operands, requested_device)
        if requested_device is not None:
            inner_kwargs["device"] = CPU
        if "pin_memory" in inner_kwargs:
            inner_kwargs["pin_memory"] = False
        with self._random_state() if operation.draws else contextlib.nullcontext():
            result = operation.on_cpu(function, *inner_args, **inner_kwargs)
        if requested_device is not None and requested_device.type == "cpu":
            return result
        if operands and result is operands[0]:
            return result  # copied to the CPU
        if operation.name == "_pack_padded_sequence":
            return _on_gpu(result[0], gpu_tensors), result[1]  # the batch sizes stay on the CPU
        return _on_gpu(result, gpu_tensors)

    @contextlib.contextmanager
    def _random_state(self) -> Iterator[None]:
        """Within the context, draw random numbers from the state of the simulated GPU."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            yield
            self.state = torch.get_rng_state()


class Operation(NamedTuple):
    """What is known of an operation.

    kernels: the number that it starts, unless it takes lists of tensors
    on_cpu: computes it with the CPU's tensors
    """

    name: str
    is_composite: bool
    is_pointwise: bool
    draws: bool
    waits: bool
    takes_lists: bool
    kernels: int
    on_cpu: Callable[..., Any]


@functools.cache
def _operation(function: Any) -> Operation:
    name = function._schema.name.split("::")[-1]
    return Operation(
        name,
        is_composite=torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"),
        is_pointwise=torch.Tag.pointwise in function.tags or name in ("where", "masked_fill", "masked_fill_", "fill_"),
        draws=RANDOM_OPERATIONS.search(name) is not None,
        waits=WAITS.fullmatch(name) is not None,
        takes_lists=name.startswith(("_foreach", "_amp_foreach", "_fused")),
        kernels=0 if WITHOUT_KERNEL.fullmatch(name) or function.is_view else KERNELS.get(name, 1),
        on_cpu=ON_CPU.get(name, _call),
    )


def _on_cpu(x: Any, operands: list[Tensor]) -> Any:
    """Return a value, or nested lists and tuples, with the CPU's tensors. Its own tensors are added to `operands`."""
    if isinstance(x, Tensor):
        operands.append(x)
        return x.inner if isinstance(x, Cuda) else x
    return type(x)([_on_cpu(item, operands) for item in x]) if isinstance(x, SEQUENCES) else x


def _on_gpu(x: Any, gpu_tensors: dict[int, Cuda]) -> Any:
    """Return a result, or nested lists and tuples, as tensors on the GPU. An operand that was changed in place is
    itself.
    """
    if isinstance(x, Tensor):
        return x if isinstance(x, Cuda) else gpu_tensors[id(x)] if id(x) in gpu_tensors else Cuda(x)
    return type(x)([_on_gpu(item, gpu_tensors) for item in x]) if isinstance(x, SEQUENCES) else x


def _check(function: Any, operation: Operation, operands: list[Tensor]) -> None:
    """Raise RuntimeError for operands on two devices, except for indices and the scalars of pointwise operations."""
    name = operation.name
    first, *further = operands or [None]
    if name in ("index", "index_put", "index_put_", "_index_put_impl_") and isinstance(first, Cuda):
        return
    if name == "_pack_padded_sequence" and isinstance(further[-1], Cuda):
        raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
    if name in (*MOVES, "_pack_padded_sequence") or not any(isinstance(x, Cuda) for x in operands):
        return
    for x in operands:
        if not isinstance(x, Cuda) and (x.dim() or not operation.is_pointwise):
            raise RuntimeError(f"Expected all tensors to be on the same device: {function} got {x.shape} on the CPU")


# Operations that take other arguments on a GPU than on a CPU.


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _softmax(function: Any, x: Tensor, dim: int, half_to_float: bool, **kwargs: Any) -> Any:
    return function(x.float() if half_to_float else x, dim, False, **kwargs)


def _softmax_backward(function: Any, gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Any:
    return function(gradient, output, dim, gradient.dtype).to(dtype)


def _addmm(
    function: Any, addend: Tensor, x: Tensor, matrix: Tensor, dtype: torch.dtype | None = None, **kwargs: Any
) -> Any:
    """A product in half precision, added to numbers in single precision."""
    if dtype is None:
        return function(addend, x, matrix, **kwargs)
    return torch.addmm(addend.to(dtype), x.to(dtype), matrix.to(dtype), **kwargs)


ON_CPU: dict[str, Callable[..., Any]] = {
    "addmm": _addmm,
    **{"_softmax": _softmax, "_log_softmax": _softmax},
    **{"_softmax_backward_data": _softmax_backward, "_log_softmax_backward_data": _softmax_backward},
}


class CuDNN(torch.autograd.Function):
    """A recurrence whose outputs and gradients are computed on the CPU."""

    @staticmethod
    def forward(ctx: Any, call: Callable[..., Any], training: bool, *tensors: Cuda) -> Any:
        _gpus[-1].recurrences["forward"] += 1
        with torch.enable_grad():
            ctx.inputs = [x.inner.detach().requires_grad_(x.requires_grad) for x in tensors]
            ctx.outputs = call(*ctx.inputs)
        ctx.training = training
        return tuple(Cuda(x.detach()) for x in ctx.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if not ctx.training:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        _gpus[-1].recurrences["backward"] += 1
        pairs = [(x, g.inner) for x, g in zip(ctx.outputs, gradients, strict=True) if g is not None and x.requires_grad]
        inputs = [x for x in ctx.inputs if x.requires_grad]
        outputs, output_gradients = [output for output, _ in pairs], [gradient for _, gradient in pairs]
        results = iter(torch.autograd.grad(outputs, inputs, output_gradients, allow_unused=True))
        inner_gradients = [next(results) if x.requires_grad else None for x in ctx.inputs]
        return None, None, *(None if x is None else Cuda(x) for x in inner_gradients)


def _recurrence(function: Any, args: Any) -> Any:
    """Run torch.lstm, gru or rnn_tanh; raise RuntimeError where cuDNN would."""
    packed = isinstance(args[3], list | tuple)
    data, sizes, state, weights, *options = args if packed else (args[0], None, *args[1:])
    states = (state,) if isinstance(state, Tensor) else tuple(state)
    tensors = [data, *states, *weights]
    if isinstance(sizes, Cuda):
        raise RuntimeError("batch_sizes tensor should be on CPU")
    if not all(isinstance(x, Cuda) for x in tensors):
        raise RuntimeError("Input and parameter tensors are not at the same device")
    if len({x.dtype for x in tensors}) > 1:
        raise RuntimeError("cuDNN RNN: mixed dtypes")
    for name, x in zip(("hx", "cx"), states, strict=False):
        if not x.is_contiguous():
            raise RuntimeError(f"rnn: {name} is not contiguous")

    def call(data: Tensor, *states_and_weights: Tensor) -> Any:
        initial_state = states_and_weights[0] if isinstance(state, Tensor) else states_and_weights[: len(states)]
        weights = list(states_and_weights[len(states) :])
        return function(data, *([sizes] if packed else []), initial_state, weights, *options)

    _gpus[-1].launches["copy of weights"] += len(weights) + 1  # cuDNN wants them side by side
    return CuDNN.apply(call, options[3], *tensors)


class Attention(torch.autograd.Function):
    """Attention by one kernel forward and two backward, as by a GPU's memory-efficient kernels."""

    @staticmethod
    def forward(ctx: Any, kwargs: dict[str, Any], *tensors: Cuda | None) -> Cuda:
        _gpus[-1].launches["attention"] += 1
        with torch.enable_grad():
            ctx.inputs = [None if x is None else x.inner.detach().requires_grad_(x.requires_grad) for x in tensors]
            ctx.output = torch.ops.aten._scaled_dot_product_attention_math(*ctx.inputs, **kwargs)[0]
        # the kernels write all heads of a position side by side
        return Cuda(ctx.output.detach().transpose(1, 2).contiguous().transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        _gpus[-1].launches["attention backward"] += 2
        inputs = [x for x in ctx.inputs if x is not None and x.requires_grad]
        # the caller may go back through its graph again
        results = iter(torch.autograd.grad(ctx.output, inputs, gradient.inner, retain_graph=True))
        return None, *(None if x is None or not x.requires_grad else Cuda(next(results)) for x in ctx.inputs)


def _attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -torch.inf)
    return Attention.apply(kwargs, q, k, v, attn_mask)


class Functions(TorchFunctionMode):
    """Handles functions that check the device before they dispatch an operation."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Cuda):
            if function in RECURRENCES:
                return _recurrence(function, args)
            if function is Tensor.tolist:
                return args[0].cpu().tolist()
            if function is F.scaled_dot_product_attention:
                return _attention(*args, **kwargs)
        return function(*args, **kwargs)


class Dispatch(TorchDispatchMode):
    """Handles operations without operands on the GPU, such as those that create a tensor there."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _gpus[-1].run(function, args, kwargs or {})


_replaced_hooks: list[Any] = []  # keeps the replacements alive


def _let_autograd_run() -> None:
    """Let autograd run without a CUDA driver.

    Autograd asks torch's CUDA hooks whether the device has a context, which is an error without a driver. The hooks'
    table of virtual functions is replaced by a copy in which this function answers "no".
    """
    torch._C._ensureCUDADeviceGuardSet()
    if _replaced_hooks or torch.version.cuda is None:
        return
    get_hooks = ctypes.CDLL(str(LIBRARY))._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    virtual_functions = [line for line in HEADER.read_text("utf-8").splitlines() if line.strip().startswith("virtual")]
    index = next(i for i, line in enumerate(virtual_functions) if "hasPrimaryContext" in line)
    index += 1  # the destructor has two entries
    table = (ctypes.c_void_p * 402).from_address(hooks[0] - 16)  # two words of type information, at most 400 functions
    copied_table = (ctypes.c_void_p * 402)(*table)
    answer_no = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_byte)(lambda self, device: False)
    copied_table[2 + index] = ctypes.cast(answer_no, ctypes.c_void_p).value
    _replaced_hooks.extend([copied_table, answer_no])
    atexit.register(hooks.__setitem__, 0, hooks[0])
    hooks[0] = ctypes.addressof(copied_table) + 16


@contextlib.contextmanager
def simulate_gpu(*, has_float64: bool = True) -> Iterator[Gpu]:
    """Within the context, torch has one GPU."""
    gpu = Gpu(has_float64)
    _let_autograd_run()
    answers: dict[str, Any] = {
        **{"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0},
        **{"_lazy_init": lambda: None, "is_initialized": lambda: True, "get_device_name": lambda *_: "simulated GPU"},
        **{"manual_seed": gpu.seed, "manual_seed_all": gpu.seed, "get_rng_state": lambda *_: gpu.state.clone()},
        **{"set_rng_state": lambda state, *_: setattr(gpu, "state", state.clone()), "set_device": lambda _: None},
        **{
            "is_bf16_supported": lambda: True,
            "get_device_capability": lambda *_: (9, 0),
            "synchronize": lambda *_: None,
        },
        **{"is_current_stream_capturing": lambda: False, "device": lambda _: contextlib.nullcontext()},
    }
    swap_parameters = torch.__future__.get_swap_module_params_on_conversion()
    lift_cpu_only = torch._C._only_lift_cpu_tensors()
    with contextlib.ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(Tensor, "pin_memory", Tensor.clone))
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap_parameters)
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lift_cpu_only)
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") makes it on the CPU and moves it
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        _gpus.append(gpu)
        stack.callback(_gpus.pop)
        stack.enter_context(Functions())
        stack.enter_context(Dispatch())
        yield gpu
