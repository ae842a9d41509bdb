"""Tests that shapes are checked while the tests run, but not in processes without the import hook."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError

from seqtool.decoding.beam_search import highest_sums
from seqtool.models.attention import Attention, AttentionOutput
from seqtool.models.contract import Memory
from seqtool.models.inputs import Source


def make_memory() -> Memory:
    return Memory(torch.zeros(2, 3, 4), torch.zeros(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Source(torch.zeros(3, 5, dtype=torch.int64), torch.ones(2, dtype=torch.int64)),
            r"'lengths'.*\n.*i64\[2\]",
        ),  # three sentences but two lengths
        (lambda: Source(torch.zeros(3, 5), torch.ones(3, dtype=torch.int64)), r"'tokens'.*\n.*f32\[3,5\]"),
        (lambda: highest_sums(torch.zeros(3, 5, 7), torch.zeros(3, 1), 2), r"'log_p'.*\n.*f32\[3,5,7\]"),
        (lambda: Attention("dot", query=4, value=4, size=5)(torch.zeros(2, 1, 4), make_memory()), r"'query'"),
    ],
)
def test_a_wrong_shape_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeCheckError, match=message):
        call()


def test_named_tuples_are_checked_by_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention("general", query=6, value=4, size=5)
    result = attention(torch.zeros(4, 6), make_memory())  # two queries for each of two rows
    assert isinstance(result, AttentionOutput) and result.alpha.shape == (4, 3)
    monkeypatch.setattr(attention, "weighted_sum", lambda weights, values: torch.zeros(5, 4))
    with pytest.raises(TypeCheckError, match="return value"):
        attention(torch.zeros(4, 6), make_memory())


def test_no_shapes_are_checked_without_the_hook() -> None:
    program = """
import sys, torch
from seqtool.models.inputs import Source
source = Source(torch.zeros(3, 5, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
print(*source.lengths.shape, *sorted({"beartype", "jaxtyping"} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["2", "jaxtyping"]
