"""Operations on trees of tensors, such as a model's memory and state for the rows that are decoded together."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


def select(tree: Any, rows: Int[Tensor, "N"], on_cpu: Int[Tensor, "N"] | None = None) -> Any:
    """Select these rows of every tensor in a tree of dataclasses and tuples. Tensors are batch first; anything else in
    the tree is shared by all rows and stays unchanged.

    A dataclass may define a method `select(rows)`, which is then called instead. A state that grows within preallocated
    tensors, for example, copies only the part in use. If `on_cpu` is given, a copy of `rows`, it is passed to a method
    `select_on_cpu(rows)` where there is one.
    """
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)
    if is_dataclass(tree):
        select_on_cpu, select_method = (getattr(tree, name, None) for name in ("select_on_cpu", "select"))
        if on_cpu is not None and select_on_cpu is not None:
            return select_on_cpu(on_cpu)
        if select_method is not None:
            return select_method(rows)
    return _with_branches(tree, lambda branch: select(branch, rows, on_cpu))


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to every tensor of a tree, in the order of `leaves`, and return the tree of the results."""
    if isinstance(tree, Tensor):
        return function(tree)
    return _with_branches(tree, lambda branch: map_tensors(function, branch))


def _with_branches(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tuple or dataclass with every member changed, and anything else unchanged."""
    if isinstance(tree, tuple):
        return tuple(map(change, tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{field.name: change(getattr(tree, field.name)) for field in fields(tree)})
    return tree


def keep(tree: Any, rows: Int[Tensor, "N"], count: int) -> Any:
    """Select rows of a tree of `count` rows, without a copy if these are all its rows in order. The tree may be on any
    device; `rows` is on the CPU.
    """
    if torch.equal(rows, torch.arange(count)):
        return tree
    return select(tree, rows.to(device_of(tree), non_blocking=True), rows)


def device_of(tree: Any) -> torch.device:
    """The device of a tree's first tensor; the CPU if it has no tensors."""
    return next(leaves(tree), torch.empty(0)).device


def leaves(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from leaves(branch)
    elif is_dataclass(tree):
        for field in fields(tree):
            yield from leaves(getattr(tree, field.name))
