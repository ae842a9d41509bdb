"""Tests of the demo's queue: it is bounded, keeps the order of requests, and answers requests of one kind together."""

import asyncio
import json
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo_models import run_in_new_thread
from starlette.exceptions import HTTPException

import seqtool
from seqtool.demo import answers
from seqtool.demo.engine import MAX_WAITING, Engine, WorkItem
from seqtool.errors import InputError
from seqtool.predict.translator import Translator


@dataclass(eq=False)
class Item(WorkItem):
    """A request. Requests of one group are answered together, by one call of `work` with the values of all."""

    work: Callable[[list[Any]], Sequence[Any]]
    value: Any = None
    group: Hashable = None
    size: int = 1
    max_group_size: int = 1

    def answer(self, models: Sequence[Any]) -> Any:
        return self.work([self.value])[0]

    def answer_together(self, models: Sequence[Any], items: Sequence["Item"]) -> Sequence[Any]:
        return self.work([item.value for item in items])


def item_waiting_for(event: threading.Event) -> Item:
    return Item(lambda _: [event.wait(10)])


def ask_at_once(models: Sequence[Any], *items: WorkItem) -> list[Any]:
    """Return the answers or errors of requests that wait together while another request is being answered."""
    results: list[Any] = []

    async def ask() -> None:
        engine, release = Engine([lambda model=model: model for model in models]), threading.Event()
        engine.start()
        first = asyncio.ensure_future(engine.ask(item_waiting_for(release)))
        await asyncio.sleep(0.1)
        waiting = [asyncio.ensure_future(engine.ask(item)) for item in items]
        await asyncio.sleep(0.1)
        release.set()
        results.extend((await asyncio.gather(first, *waiting, return_exceptions=True))[1:])
        engine.stop()

    run_in_new_thread(ask)
    return results


def test_requests_are_refused_if_the_model_cannot_be_loaded() -> None:
    """The message gives the reason for the failure."""

    def load() -> Any:
        raise RuntimeError("no memory is left")

    async def ask() -> None:
        engine = Engine([load])
        engine.start()
        with pytest.raises(InputError, match="no memory is left"):
            await engine.ask(Item(list))
        assert (engine.state, engine.problem) == ("failed", "no memory is left")
        engine.stop()

    run_in_new_thread(ask)


def test_the_queue_is_bounded_and_skips_cancelled_requests() -> None:
    release, answered = threading.Event(), []

    def numbered_item(i: int) -> Item:
        return Item(lambda values: [answered.append(value) for value in values], i)

    async def ask() -> None:
        engine = Engine([lambda: 1])
        engine.start()
        first = asyncio.ensure_future(engine.ask(item_waiting_for(release)))
        await asyncio.sleep(0.2)
        waiting = [asyncio.ensure_future(engine.ask(numbered_item(i))) for i in range(MAX_WAITING)]
        await asyncio.sleep(0.1)
        with pytest.raises(HTTPException, match="Too many requests are waiting"):
            await engine.ask(Item(list))
        waiting[0].cancel()
        await asyncio.sleep(0.1)
        waiting.append(asyncio.ensure_future(engine.ask(numbered_item(MAX_WAITING))))
        await asyncio.sleep(0.1)
        release.set()
        await asyncio.gather(first, *waiting[1:])
        assert answered == list(range(1, MAX_WAITING + 1))
        engine.stop()

    run_in_new_thread(ask)


def test_requests_of_one_kind_are_answered_together() -> None:
    """Groups are limited in size and keep their order; another request waits for at most one group."""
    groups: list[list[Any]] = []

    def work(values: list[Any]) -> list[Any]:
        groups.append(values)
        return [-10 * value for value in values]

    kinds = [(1, "a", 4), (2, None, 1), (3, "a", 4), (4, "b", 1), (5, "a", 1), (6, None, 1), (7, "b", 2)]
    kinds += [(8, "a", 20), (9, "c", 1), (10, "c", 1)]
    items = [Item(work, number, kind, size, 0 if kind == "c" else 8) for number, kind, size in kinds]
    assert ask_at_once([None], *items) == [-10 * number for number, *_ in kinds]
    assert groups == [[1, 3], [2], [4, 7], [5], [6], [8], [9], [10]]


def test_a_cancelled_request_does_not_disturb_its_group() -> None:
    """The remaining requests are answered. If the server stops and a group fails, its requests are not repeated."""
    release, started, groups = threading.Event(), threading.Event(), []

    def work(values: list[int]) -> list[int]:
        groups.append(values)
        started.set()
        release.wait(10)
        if values == [1, 2, 3]:
            raise RuntimeError("together")
        return values

    async def ask(numbers: Sequence[int], cancelled_index: int, *, stop: bool) -> list[Any]:
        engine = Engine([lambda: 1])
        waiting = [asyncio.ensure_future(engine.ask(Item(work, i, "kind", 1, 3))) for i in numbers]
        await asyncio.sleep(0)
        engine.start()
        await asyncio.to_thread(started.wait, 10)
        waiting[cancelled_index].cancel()
        await asyncio.sleep(0.1)
        if stop:
            engine.stop()
        release.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        engine.stop()
        return [type(result) if isinstance(result, BaseException) else result for result in results]

    async def ask_twice() -> None:
        cancelled = asyncio.CancelledError
        assert await ask([4, 5, 6], 1, stop=False) == [4, cancelled, 6]
        release.clear()
        started.clear()
        assert await ask([1, 2, 3], 0, stop=True) == [cancelled] * 3
        assert groups == [[4, 5, 6], [1, 2, 3]]

    run_in_new_thread(ask_twice)


def test_only_failing_requests_of_a_group_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """If a group fails, its requests are repeated one by one."""
    groups: list[list[str]] = []

    def work(names: list[str]) -> list[str]:
        groups.append(names)
        for error in (MemoryError, InputError):
            if error.__name__ in names:
                raise error("not this one")
        return names

    names = ["good", "MemoryError", "better", "InputError"]
    results = ask_at_once([None], *(Item(work, name, "kind", 1, 9) for name in names))
    assert [results[0], results[2]] == ["good", "better"]
    errors = [(type(error), str(error)) for error in results[1::2]]
    assert errors == [(MemoryError, "not this one"), (InputError, "not this one")]
    assert groups == [names, *([name] for name in names)]
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
        ([{"settings": {"beam": 50}, "sentences": [""] * 99}] * 3, 3),  # with a beam of 50, too many for a group
        ([{"sentences": [""] * 101}, {}, {"sentences": [""] * 101}], 3),
        ([{"sentences": [DOG] * 30}, {}, {"sentences": [DOG] * 30}], 3),  # too many attention weights for a group
    ],
)
def test_joint_translations_equal_separate_translations(
    shown_runs: Path, monkeypatch: pytest.MonkeyPatch, requests: list[dict[str, Any]], calls: int
) -> None:
    """Requests with different settings, and requests that sample, are not translated together."""
    models = [seqtool.load(shown_runs / "runs" / name, device="cpu") for name in ("attend", "fixed")]
    sentence_counts, hypotheses = [], Translator.hypotheses

    def counting_hypotheses(self: Translator, sentences: list[str], **settings: Any) -> Any:
        sentence_counts.append(len(sentences))
        return hypotheses(self, sentences, **settings)

    monkeypatch.setattr(Translator, "hypotheses", counting_hypotheses)
    monkeypatch.setattr(answers, "MAX_WEIGHTS_KEPT", 3 * answers.count_attention_weights(models[0], [DOG] * 30) // 2)

    def parse(request: dict[str, Any]) -> WorkItem:
        return answers.Translate.parse(json.dumps({"sentences": [BIG, DOG], **request}).encode())

    joint_answers = ask_at_once(models, *map(parse, requests))
    assert len(sentence_counts) == calls
    separate_answers = [ask_at_once(models, parse(request))[0] for request in requests]
    for answer, expected in zip(joint_answers, separate_answers, strict=True):
        if isinstance(answer, InputError):
            assert str(answer) == str(expected)
            continue
        sources, expected_sources = ([line["source"] for line in a["translations"]] for a in (answer, expected))
        assert sources == expected_sources
        assert list(comparable_hypotheses(answer)) == [
            {**record, **{name: pytest.approx(record[name], rel=1e-5) for name in ("score", "log_probability")}}
            for record in comparable_hypotheses(expected)
        ]


def comparable_hypotheses(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the translations without attention and predictions, which depend on what each request asks for."""
    for line in answer["translations"]:
        yield from ({**translation, "attention": None, "predicted": None} for translation in line["translations"])
