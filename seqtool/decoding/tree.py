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
    if isinstance(tree, tuple):
        return tuple(select(branch, rows) for branch in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        own = getattr(tree, "select", None)
        if own is not None:
            return own(rows)
        return replace(tree, **{f.name: select(getattr(tree, f.name), rows) for f in fields(tree)})
    return tree


def each(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with the function applied to every tensor."""
    return rebuilt(tree, map(function, leaves(tree)))


def rebuilt(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The tree with other tensors in place of its own, in the order of `leaves`."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, tuple):
        return tuple(rebuilt(branch, tensors) for branch in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: rebuilt(getattr(tree, f.name), tensors) for f in fields(tree)})
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
