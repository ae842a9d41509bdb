"""The demo's queue: bounded, answered in its order, and together where requests are of one kind."""

import asyncio
import json
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo_models import alone
from starlette.exceptions import HTTPException

import seqtool
from seqtool.demo import answers
from seqtool.demo.engine import MAX_WAITING, Engine, WorkItem
from seqtool.errors import InputError
from seqtool.predict.translator import Translator


@dataclass(eq=False)
class Item(WorkItem):
    """Something to do; items of one group are done by one call of `work`, with the values of all."""

    work: Callable[[list[Any]], Sequence[Any]]
    value: Any = None
    group: Hashable = None
    size: int = 1
    max_group_size: int = 1

    def answer(self, models: Sequence[Any]) -> Any:
        return self.work([self.value])[0]

    def answer_together(self, models: Sequence[Any], items: Sequence["Item"]) -> Sequence[Any]:
        return self.work([item.value for item in items])


def waiting_for(event: threading.Event) -> Item:
    return Item(lambda _: [event.wait(10)])


def asked_at_once(models: Sequence[Any], *items: WorkItem) -> list[Any]:
    """The answers, or errors, of requests that all wait while another one is being answered."""
    found: list[Any] = []

    async def ask() -> None:
        engine, held = Engine(lambda: models), threading.Event()
        engine.start()
        first = asyncio.ensure_future(engine.ask(waiting_for(held)))
        await asyncio.sleep(0.1)
        waiting = [asyncio.ensure_future(engine.ask(item)) for item in items]
        await asyncio.sleep(0.1)
        held.set()
        found.extend((await asyncio.gather(first, *waiting, return_exceptions=True))[1:])
        engine.stop()

    alone(ask)
    return found


def test_a_model_that_cannot_be_loaded_is_said() -> None:
    """Whatever the reason; requests are refused with it instead of waiting."""

    def load() -> list[Any]:
        raise RuntimeError("no memory is left")

    async def asked() -> None:
        engine = Engine(load)
        engine.start()
        with pytest.raises(InputError, match="no memory is left"):
            await engine.ask(Item(list))
        assert (engine.state, engine.problem) == ("failed", "no memory is left")
        engine.stop()

    alone(asked)


def test_the_queue_is_bounded_and_who_leaves_it_is_not_answered() -> None:
    held, done = threading.Event(), []

    def doing(i: int) -> Item:
        return Item(lambda values: [done.append(value) for value in values], i)

    async def asked() -> None:
        engine = Engine(lambda: [1])
        engine.start()
        first = asyncio.ensure_future(engine.ask(waiting_for(held)))
        await asyncio.sleep(0.2)
        waiting = [asyncio.ensure_future(engine.ask(doing(i))) for i in range(MAX_WAITING)]
        await asyncio.sleep(0.1)
        with pytest.raises(HTTPException, match="Too many requests are waiting"):
            await engine.ask(Item(list))
        waiting[0].cancel()
        await asyncio.sleep(0.1)
        waiting.append(asyncio.ensure_future(engine.ask(doing(MAX_WAITING))))
        await asyncio.sleep(0.1)
        held.set()
        await asyncio.gather(first, *waiting[1:])
        assert done == list(range(1, MAX_WAITING + 1))
        engine.stop()

    alone(asked)


def test_requests_of_one_kind_are_done_together() -> None:
    """As far as there is room, and in their order; a request of another kind waits for one such group at most."""
    done: list[list[Any]] = []

    def work(values: list[Any]) -> list[Any]:
        done.append(values)
        return [-10 * value for value in values]

    kinds = [(1, "a", 4), (2, None, 1), (3, "a", 4), (4, "b", 1), (5, "a", 1), (6, None, 1), (7, "b", 2)]
    kinds += [(8, "a", 20), (9, "c", 1), (10, "c", 1)]
    items = [Item(work, number, kind, size, 0 if kind == "c" else 8) for number, kind, size in kinds]
    assert asked_at_once([], *items) == [-10 * number for number, *_ in kinds]
    assert done == [[1, 3], [2], [4, 7], [5], [6], [8], [9], [10]]


def test_who_leaves_while_requests_are_done_together() -> None:
    """The others are answered; at the end of the server nobody is answered who would be done anew."""
    held, began, done = threading.Event(), threading.Event(), []

    def work(values: list[int]) -> list[int]:
        done.append(values)
        began.set()
        held.wait(10)
        if values == [1, 2, 3]:
            raise RuntimeError("together")
        return values

    async def ask(numbers: Sequence[int], left: int, *, stop: bool) -> list[Any]:
        engine = Engine(lambda: [1])
        waiting = [asyncio.ensure_future(engine.ask(Item(work, i, "kind", 1, 3))) for i in numbers]
        await asyncio.sleep(0)
        engine.start()
        await asyncio.to_thread(began.wait, 10)
        waiting[left].cancel()
        await asyncio.sleep(0.1)
        if stop:
            engine.stop()
        held.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        engine.stop()
        return [type(one) if isinstance(one, BaseException) else one for one in found]

    async def both() -> None:
        cancelled = asyncio.CancelledError
        assert await ask([4, 5, 6], 1, stop=False) == [4, cancelled, 6]
        held.clear()
        began.clear()
        assert await ask([1, 2, 3], 0, stop=True) == [cancelled] * 3
        assert done == [[4, 5, 6], [1, 2, 3]]

    alone(both)


def test_only_those_at_fault_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of requests that are done together, each is done alone if one of them fails."""
    done: list[list[str]] = []

    def work(names: list[str]) -> list[str]:
        done.append(names)
        for error in (MemoryError, InputError):
            if error.__name__ in names:
                raise error("not this one")
        return names

    names = ["good", "MemoryError", "better", "InputError"]
    found = asked_at_once([], *(Item(work, name, "kind", 1, 9) for name in names))
    assert [found[0], found[2]] == ["good", "better"]
    assert [(type(one), str(one)) for one in found[1::2]] == [
        (MemoryError, "not this one"),
        (InputError, "not this one"),
    ]
    assert done == [names, *([name] for name in names)]
    assert "one by one: not this one" in caplog.text


BIG, DOG = "I have a big cat .", "the old dog sees the red house ."


@pytest.mark.parametrize(
    ("requests", "calls"),
    [
        ([{}, {"weights": True}, {"prefixes": ["La", ""]}, {"sentences": [DOG]}, {}], 3),
        ([{"likeliest": 2}, {"likeliest": 2}, {}, {"sentences": ["", BIG]}], 3),
        ([{"settings": {"beam": 3, "n_best": 2}}, {"settings": {"n_best": 2, "beam": 3}}, {}], 2),
        ([{"settings": {"sample": True, "n_best": 2}}, {"settings": {"sample": True, "n_best": 2}}], 2),
        ([{"sentences": [BIG], "tree": True}, {"sentences": [BIG], "tree": True}, {"model": 1}, {}], 4),
        ([{"settings": {"beam": 0}}, {}, {}], 1),
        ([{"settings": {"beam": "2"}}, {"settings": {"beam": "2"}}, {}, {}], 1),
        ([{"settings": {"beam": 50}, "sentences": [""] * 99}] * 3, 3),  # too many, times 50: one by one
        ([{"sentences": [""] * 101}, {}, {"sentences": [""] * 101}], 3),
        ([{"sentences": [DOG] * 30}, {}, {"sentences": [DOG] * 30}], 3),  # more attention than is kept: one by one
    ],
)
def test_translations_together_are_those_alone(
    shown_runs: Path, monkeypatch: pytest.MonkeyPatch, requests: list[dict[str, Any]], calls: int
) -> None:
    """Whatever differs between the requests: those of other settings, and draws, are not mixed."""
    models = [seqtool.load(shown_runs / "runs" / name, device="cpu") for name in ("attend", "fixed")]
    made, hypotheses = [], Translator.hypotheses

    def counted(self: Translator, sentences: list[str], **others: Any) -> Any:
        made.append(len(sentences))
        return hypotheses(self, sentences, **others)

    monkeypatch.setattr(Translator, "hypotheses", counted)
    monkeypatch.setattr(answers, "MAX_WEIGHTS_KEPT", 3 * answers.attention_weights(models[0], [DOG] * 30) // 2)

    def asked(one: dict[str, Any]) -> WorkItem:
        return answers.Translate.parse(json.dumps({"sentences": [BIG, DOG], **one}).encode())

    together = asked_at_once(models, *map(asked, requests))
    assert len(made) == calls
    apart = [asked_at_once(models, asked(one))[0] for one in requests]
    for one, other in zip(together, apart, strict=True):
        if isinstance(one, InputError):
            assert str(one) == str(other)
        else:
            assert [line["source"] for line in one["translations"]] == [
                line["source"] for line in other["translations"]
            ]
            assert list(hypotheses_of(one)) == [
                {**each, **{name: pytest.approx(each[name], rel=1e-5) for name in ("score", "log_probability")}}
                for each in hypotheses_of(other)
            ]


def hypotheses_of(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Without what is not of translations alone."""
    for line in answer["translations"]:
        yield from ({**one, "attention": None, "predicted": None} for one in line["translations"])
