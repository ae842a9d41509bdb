"""Trees of tensors: a model's memory and state for the rows that are decoded together."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


def select(tree: Any, rows: Int[Tensor, "N"]) -> Any:
    """The given rows of every tensor in a tree of dataclasses and tuples. Tensors are batch first; everything else in
    the tree is the same for all rows and stays.

    A dataclass with a method `select(rows)` does this in its own way: a state that grows within tensors allocated
    beforehand need only copy the part in use.
    """
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)
    own = getattr(tree, "select", None) if is_dataclass(tree) else None
    return _with_branches(tree, lambda branch: select(branch, rows)) if own is None else own(rows)


def each(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with the function applied to every tensor, in the order of `leaves`."""
    if isinstance(tree, Tensor):
        return function(tree)
    return _with_branches(tree, lambda branch: each(function, branch))


def _with_branches(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A tuple or dataclass whose members are changed; anything else as it is."""
    if isinstance(tree, tuple):
        return tuple(map(change, tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{field.name: change(getattr(tree, field.name)) for field in fields(tree)})
    return tree


def keep(tree: Any, rows: Int[Tensor, "N"], count: int) -> Any:
    """The given rows of a tree of `count` rows on any device; `rows` is on the CPU. Nothing is copied if they are all
    the rows in order.
    """
    if torch.equal(rows, torch.arange(count)):
        return tree
    return select(tree, rows.to(device_of(tree), non_blocking=True))


def device_of(tree: Any) -> torch.device:
    """The device of a tree's first tensor; the CPU if it has none."""
    return next(leaves(tree), torch.empty(0)).device


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from leaves(branch)
    elif is_dataclass(tree):
        for field in fields(tree):
            yield from leaves(getattr(tree, field.name))
