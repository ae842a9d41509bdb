"""Optimisers by name, and learning-rate schedules, which are pure functions of training progress."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch

from seqtool.errors import InputError, is_out_of_memory
from seqtool.settings import Config, check_arguments, declarations, plain, sentence, typed, unknown
from seqtool.settings.classes import import_class

_CLASSES = torch.optim.Adadelta, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD
OPTIMISERS: dict[str, type[torch.optim.Optimizer]] = {kind.__name__.lower(): kind for kind in _CLASSES}

# The type of a setting's value, by the type of torch's default: torch's optimisers do not check types.
SETTING_TYPES: dict[type, Any] = {float: float, int: float, bool: bool, tuple: list[float]}

FUSED = ("adam", "adamw")  # optimisers with a fused kernel: one pass over memory instead of a dozen

Schedule = Callable[[int, float, int], float]
"""(step from 1, epochs so far as a fraction, plateaus so far) → the factor by which the learning rate is multiplied."""


@dataclasses.dataclass
class Optimisation:
    """An optimiser whose learning rates follow a schedule."""

    optimiser: torch.optim.Optimizer
    schedule: Schedule
    plateau: int | None  # the validations in a row without improvement that are one; None if the schedule has none

    def __post_init__(self) -> None:
        self._rates = [group["lr"] for group in self.optimiser.param_groups]

    def prepare(self, step: int, epoch: float, plateaus: int) -> None:
        """Set the learning rates of a step, counted without skipped steps, and let gradients reach each group of
        parameters only after its `from_step`.
        """
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.schedule(step, epoch, plateaus)
            for parameter in group["params"]:
                parameter.requires_grad_(step > group["from_step"])


def make_optimisation(optim: Config, schedule: Config, parameters: Iterable[Any]) -> Optimisation:
    """Make an optimiser with a schedule, from the settings of both. Each group of parameters has a `from_step`."""
    settings = plain(schedule)
    return Optimisation(make_optimiser(plain(optim), parameters), make_schedule(settings), settings.get("patience"))


def make_optimiser(settings: Mapping[str, Any], parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Make the optimiser that the setting `name` names (a dotted name is a class); other settings are its arguments."""
    parameters = list(parameters)
    groups = [group["params"] if isinstance(group, dict) else [group] for group in parameters]
    can_fuse = all(parameter.device.type in ("cpu", "cuda") for group in groups for parameter in group)
    name, optimiser, arguments = _choose(settings, OPTIMISERS, kind="optimiser", group="optim")
    arguments = _convert(optimiser, arguments)
    for setting, value in arguments.items() if name in OPTIMISERS else ():
        default = inspect.signature(optimiser).parameters[setting].default
        if isinstance(value, float) and value < 0:
            raise InputError(f"optim.{setting} must be at least 0, not {value:g}.")
        if isinstance(default, tuple) and (len(value) != len(default) or not all(0 <= decay < 1 for decay in value)):
            raise InputError(f"optim.{setting} must be {len(default)} numbers from 0 to below 1, not {value}.")
    incompatible = arguments.keys() & {"foreach", "differentiable"}  # torch excludes them with `fused`
    if name in FUSED and can_fuse and not incompatible:
        arguments = {"fused": True, **arguments}
    with _as_input_errors(name):
        instance: torch.optim.Optimizer = optimiser(parameters, **arguments)
    return instance


def check_optimisation(optim: Config, schedule: Config) -> None:
    """Raise InputError if making an optimiser from these settings, or its first step, would always fail."""
    make_schedule(plain(schedule))
    _state_after_step(plain(optim), {})


def can_continue(before: Config, now: Config) -> bool:
    """Whether an optimiser with the settings `now` can go on from the state of one with those `before`.

    Raises InputError if even a new optimiser cannot have these settings.
    """
    state, _ = (_state_after_step(plain(settings), {}) for settings in (before, now))
    try:
        _state_after_step(plain(now), state)
    except InputError:
        return False
    return True


def _state_after_step(settings: Mapping[str, Any], state: Mapping[int, Any]) -> dict[int, Any]:
    """The state of an optimiser of a single number after a step from `state`; InputError if the step fails."""
    on_gpu = settings.get("capturable") and torch.cuda.is_available()  # `capturable` needs a GPU
    parameter = torch.nn.Parameter(torch.zeros(1, device="cuda" if on_gpu else "cpu"))
    parameter.grad = torch.zeros_like(parameter)
    optimiser = make_optimiser(settings, [parameter])
    with _as_input_errors(settings["name"]):
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        optimiser.step()
    after: dict[int, Any] = optimiser.state_dict()["state"]
    return after


@contextmanager
def _as_input_errors(name: str) -> Iterator[None]:
    """Turn errors of torch about the settings of the optimiser `name` into InputError."""
    try:
        yield
    except (TypeError, ValueError, LookupError, RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(f"The settings optim.* do not suit {name}: {str(error).removesuffix('.')}.") from error


def _convert(optimiser: type[torch.optim.Optimizer], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert each argument to the type of the optimiser's default."""
    fields: list[Any] = []
    for name, parameter in inspect.signature(optimiser).parameters.items():
        if name in arguments:
            fields.append((name, SETTING_TYPES.get(type(parameter.default), Any), dataclasses.field()))
        elif parameter.default is not parameter.empty:  # settings that the user did not set: only their names matter
            fields.append((name, Any, dataclasses.field(default=None)))
    values: Any = typed(dataclasses.make_dataclass("Settings", fields, kw_only=True), arguments, prefix="optim")
    return {name: getattr(values, name) for name in arguments}


def _choose(
    settings: Mapping[str, Any], table: Mapping[str, Any], *, kind: str, group: str
) -> tuple[str, Any, dict[str, Any]]:
    """Return a group's `name`, what it names (in `optim` also a user's class), and the other settings."""
    arguments = dict(settings)
    name = arguments.pop("name", "")
    if not isinstance(name, str):
        raise InputError(f"Setting '{group}.name' must be text, not {name}.")
    if group == "optim" and "." in name:
        return name, import_class(name, torch.optim.Optimizer, setting="optim.name"), arguments
    if name not in table:
        raise InputError(sentence([unknown(name, table, kind=kind)]))
    return name, table[name], arguments


def make_schedule(settings: Mapping[str, Any]) -> Schedule:
    """Make the schedule that the setting `name` names; the other settings are its arguments."""
    _, make, arguments = _choose(settings, SCHEDULES, kind="schedule", group="schedule")
    checked_arguments = check_arguments(make, arguments, prefix="schedule")
    if problems := declarations.out_of_range(declarations.Schedule, checked_arguments, "schedule."):
        raise InputError(f"{problems[0]}.")
    return cast(Schedule, make(**checked_arguments))


def check_warmup(schedule: Config, steps: int) -> None:
    """Raise InputError if the warm-up is longer than a run of this many steps."""
    warmup = plain(schedule).get("warmup", 0)
    if 0 < steps < warmup:
        raise InputError(
            f"schedule.warmup={warmup} is longer than this run of {steps:,} steps, so the learning rate would never "
            f"rise to optim.lr: set schedule.warmup={fitting_warmup(steps)}, or raise train.epochs or train.steps."
        )


def fitting_warmup(steps: int) -> int:
    """A suitable number of warm-up steps for a run of this many steps: a tenth."""
    return steps // 10


def constant(*, warmup: int) -> Schedule:
    return lambda step, epoch, plateaus: _ramp(step, warmup)


def inverse_square_root(*, warmup: int) -> Schedule:
    """Fall with the inverse square root of the step after the warm-up (Vaswani et al. 2017, (3))."""
    return lambda step, epoch, plateaus: _ramp(step, warmup) * math.sqrt(max(1, warmup) / max(step, warmup, 1))


def cosine(*, warmup: int, epochs: float | None) -> Schedule:
    """Follow half a cosine, from 1 down to 0 after `epochs` (Loshchilov & Hutter 2017, (5), without restarts)."""
    if epochs is None:
        raise InputError("schedule=cosine needs an end; set train.epochs, or schedule.epochs.")
    return lambda step, epoch, plateaus: _ramp(step, warmup) * (1 + math.cos(math.pi * min(1.0, epoch / epochs))) / 2


def halve_by_epoch(*, start: float, every: float) -> Schedule:
    """Halve the rate every `every` epochs from epoch `start` on (Sutskever et al. 2014, section 3.4: 0.5 and 5)."""
    return lambda step, epoch, plateaus: 0.5 ** (math.floor((epoch - start) / every) + 1 if epoch >= start else 0)


def halve_on_plateau(*, warmup: int, patience: int) -> Schedule:
    """Halve the rate at each plateau, which the training loop detects: `patience` validations without improvement."""
    return lambda step, epoch, plateaus: _ramp(step, warmup) * 0.5**plateaus


_FUNCTIONS = constant, cosine, halve_by_epoch, halve_on_plateau, inverse_square_root
SCHEDULES: dict[str, Callable[..., Schedule]] = {function.__name__: function for function in _FUNCTIONS}


def _ramp(step: int, warmup: int) -> float:
    """The factor of a linear warm-up: 1 after `warmup` steps."""
    return min(1.0, step / warmup) if warmup else 1.0
