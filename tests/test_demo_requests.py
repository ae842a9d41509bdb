"""Tests of the demo's requests: settings of wrong types, hosts, tokens, time limits and the fields of answers."""

import http.client
import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_demo import form, png, serve_app

import seqtool
from seqtool.demo import requests
from seqtool.demo.app import make_app
from seqtool.demo.engine import Engine

RUNS = ("attend", "scenes", "text")
TOKEN = "a-token-of-twenty-one"
SCENE = {"items": [{"shape": "circle", "colour": "red", "turned": 0, "box": [0, 0, 9, 9]}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "translate": ("attend", {"sentences": ["I have a cat."]}),
    "score": ("attend", {"sources": ["I have a cat."], "references": ["Tengo un gato."]}),
    "why": ("attend", {"source": "I have a cat.", "translation": "Tengo un gato."}),
    "caption": ("scenes", {"scene": SCENE}),
    "generate": ("text", {"prompts": ["the"]}),
    "next": ("text", {"text": "the"}),
}


@pytest.fixture(scope="module")
def models(shown_runs: Path) -> dict[str, Any]:
    return {run: seqtool.load(shown_runs / "runs" / run, device="cpu", threads=1) for run in RUNS}


@pytest.fixture(scope="module")
def ports(models: dict[str, Any]) -> Iterator[dict[str, int]]:
    """The ports at which the models are served; the server at `token` requires a token."""
    with ExitStack() as stack:

        def serve(run: str, **settings: Any) -> int:
            engine = Engine([lambda: models[run]])
            return stack.enter_context(serve_app(lambda port: make_app(engine, port=port, **settings)))

        yield {
            **{run: serve(run, host="127.0.0.1", token=None) for run in RUNS},
            "token": serve("text", host="0.0.0.0", token=TOKEN),
        }


def call(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def nested_json(depth: int, brackets: tuple[str, str] = ("[", "]")) -> str:
    return brackets[0] * depth + "1" + brackets[1] * depth


WRONG_FOR_EVERY_TYPE = [
    *(nested_json(depth) for depth in (1, 2, 60, 500, 900)),
    *(nested_json(depth, ('{"a":', "}")) for depth in (1, 60, 500)),
    *("[]", "{}", '["a"]', "[null]", "[NaN]", '"\\u202e\\n"', json.dumps("x" * 5000), "9" * 4000, "-1e999", "NaN"),
]
WRONG_VALUES = {
    "beam": ["true", '"2"', "2.5", "null", "Infinity", "1e3"],
    "seed": ["false", '"1"', "1.5", "null", "9007199254740993"],
    "sample": ["1", '"true"', "null"],
    "temperature": ["true", '"1"', "null"],
    "length_penalty": ["1", "null", "true", '"far"'],
    "hard_attention": ["1", "null"],
    "stop": ['"a"', "1", "[1]", '[["a"]]', json.dumps(["a"] * 11), json.dumps(["a" * 101])],
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_values_of_wrong_types_get_a_short_message(
    kind: str, models: dict[str, Any], ports: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The message is one short line, and nothing is logged; the same holds for nested values of other fields."""
    run, body = REQUESTS[kind]
    bodies = []
    for name in set(WRONG_VALUES) & set(vars(models[run].settings)):
        values = [*WRONG_FOR_EVERY_TYPE, *WRONG_VALUES[name]]
        valid = ("[]", '["a"]') if name == "stop" else ()
        settings = [f'{{"{name}": {value}}}' for value in values if value not in valid]
        bodies += [f'{json.dumps(body)[:-1]}, "settings": {setting}}}' for setting in settings]
    for name in (*body, "settings", "model", "likeliest", "weights", "file"):
        fields = {key: value for key, value in body.items() if key != name}
        start = json.dumps(fields)[:-1] + (", " if fields else "")
        bodies += [
            f'{start}"{name}": {value}}}' for value in (nested_json(500), nested_json(20), "9" * 4000, "NaN", "[]")
        ]
    for content in bodies:
        status, text = call(ports[run], "POST", f"/api/{kind}", content.encode())
        assert status == 400 and text.count("\n") == 1 and len(text) < 400, (content[:200], status, text[:500])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    valid_body = json.dumps({**body, "settings": {"seed": 7, "temperature": 1}}).encode()
    assert call(ports[run], "POST", f"/api/{kind}", valid_body)[0] == 200


def test_wrong_settings_in_a_form_get_a_short_message(ports: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    for settings in ({"beam": json.loads(nested_json(500))}, {"hard_attention": ["argmax"]}, {"beam": "2"}):
        content, headers = form([("a.png", png(4, 4))], {"settings": settings})
        status, text = call(ports["scenes"], "POST", "/api/caption", content, content_type=headers["content-type"])
        assert status == 400 and text.count("\n") == 1 and len(text) < 400
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


LONG_OUTPUT = {"max_length": 300, "min_length": 300, "beam": 2}
SLOW_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("translate", {"sentences": ["I have a cat. " * 20] * 3, "settings": LONG_OUTPUT}),
    ("translate", {"sentences": ["I have a cat. " * 20] * 3, "settings": {**LONG_OUTPUT, "sample": True}}),
    ("score", {"sources": ["a"], "references": ["un gato " * 60]}),
    ("why", {"source": "I have a cat. " * 5, "translation": "a", "settings": LONG_OUTPUT}),
    ("caption", {"scene": SCENE, "settings": LONG_OUTPUT}),
    ("caption", {"scene": SCENE, "settings": {**LONG_OUTPUT, "sample": True, "hard_attention": "sample"}}),
    ("generate", {"prompts": ["the"], "settings": {"max_length": 300}}),
]


@pytest.mark.parametrize(("kind", "body"), SLOW_REQUESTS)
def test_a_request_over_the_time_limit_stops_between_steps(
    kind: str, body: dict[str, Any], models: dict[str, Any], ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request stops within a batch too, and the next request is answered."""
    run, quick_body = REQUESTS[kind]
    model = models[run].models[0]
    step = model.step

    def slow_step(*arguments: Any) -> Any:
        time.sleep(0.02)
        return step(*arguments)

    monkeypatch.setattr(requests, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(model, "step", slow_step)
    start = time.monotonic()
    status, text = call(ports[run], "POST", f"/api/{kind}", json.dumps(body).encode())
    assert status == 400 and "took longer" in text and time.monotonic() - start < 2
    monkeypatch.undo()
    assert call(ports[run], "POST", f"/api/{kind}", json.dumps(quick_body).encode())[0] == 200


@pytest.mark.parametrize("method", ["", "gradient", "integrated", "occlusion", "attention"])
def test_looking_inside_stops_at_the_time_limit(
    method: str, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"source": "I have a cat.", "text": "Tengo un gato.", "method": method}).encode()
    assert call(ports["attend"], "POST", "/api/inside", body)[0] == 200
    monkeypatch.setattr(requests, "MAX_SECONDS", -1)
    status, text = call(ports["attend"], "POST", "/api/inside", body)
    assert status == 400 and "took longer" in text
    monkeypatch.undo()
    assert call(ports["attend"], "POST", "/api/inside", body)[0] == 200


def test_answers_report_truncated_unknown_and_forced_tokens(ports: dict[str, int]) -> None:
    """The fields are those of JSON lines (tests/test_signs_in_json.py). Truncated sources cannot be compared."""

    def answer(kind: str, **body: Any) -> Any:
        return json.loads(call(ports[REQUESTS[kind][0]], "POST", f"/api/{kind}", json.dumps(body).encode())[1])

    sources = ["I have a 🐈.", "a big cat " * 9]
    settings = {"max_source_length": 15}
    translations = answer("translate", sentences=sources, prefixes=["La", ""], likeliest=1, settings=settings)
    first, second = translations["translations"]
    assert [token.strip("▁") for token in first["source_unknown"]] == ["🐈"] and first["source_cut"] == 0
    assert second["source_unknown"] == [] and second["source_cut"] > 0
    captions = answer("caption", scene=SCENE, prefix="a 🐈", likeliest=1)["captions"][0]["captions"]
    for (best, *_), unknown in ((first["translations"], []), (captions, ["🐈"])):
        log_p = [math.log(token["probability"]) for token in best["predicted"]]
        assert [token.strip("▁") for token in best["prefix_unknown"]] == unknown
        assert best["log_probability"] == pytest.approx(sum(log_p[best["prefix_tokens"] :]), abs=1e-3)
        assert best["log_probability_with_prefix"] == pytest.approx(sum(log_p), abs=1e-3)
        assert best["score_with_prefix"] == pytest.approx(sum(log_p) / len(log_p), abs=1e-3)
    assert "prefix_tokens" not in second["translations"][0]
    (scored,) = answer("score", sources=["a 🐈"], references=["un 猫"])["scores"]
    assert (len(scored["source_unknown"]), len(scored["unknown"])) == (1, 1)
    assert answer("generate", prompts=["the 猫"])["texts"][0]["unknown"] == ["猫"]
    truncated = json.dumps({"source": sources[1], "translation": "La", "settings": settings}).encode()
    status, text = call(ports["attend"], "POST", "/api/why", truncated)
    assert status == 400 and "are not translated: shorten it to compare" in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000"])
def test_names_of_this_machine_are_accepted_as_hosts(host: str, ports: dict[str, int]) -> None:
    assert call(ports["text"], "GET", "/api/model", host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("[::1]evil.com", "[::1].evil.com:80", "[::1]:80.evil.com", "[::1", "::1", "[::1]@evil.com", "[::2]"),
        *("localhost:evil.com", "localhost:1@evil.com", "localhost:1:2", "localhost@evil.com", "localhost.evil.com"),
        *("evil.com:localhost", "127.0.0.1:8x", "127.0.0.1:1/evil.com", "127.0.0.11", "evil.com", ""),
    ],
)
def test_other_host_names_are_refused(host: str, ports: dict[str, int]) -> None:
    status, text = call(ports["text"], "GET", "/api/model", host=host)
    assert status in (400, 421) and "ready" not in text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEARER", "bearer "])
def test_the_bearer_scheme_is_accepted_in_any_case(scheme: str, ports: dict[str, int]) -> None:
    assert call(ports["token"], "GET", "/api/model", authorization=f"{scheme} {TOKEN}")[0] == 200
    assert call(ports["token"], "GET", "/api/model", authorization=f"{scheme} {TOKEN}x")[0] == 401
    assert call(ports["token"], "GET", "/api/model", authorization=f"Basic {TOKEN}")[0] == 401
    assert call(ports["token"], "GET", "/api/model", cookie='bad="; =; \\')[0] == 401


def test_a_defect_is_logged_but_not_sent_to_the_client(
    models: dict[str, Any], ports: dict[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(models["text"].models[0], "step", fail)
    status, text = call(ports["text"], "POST", "/api/generate", b'{"prompts": ["the"]}')
    assert (status, text.count("\n")) == (500, 1) and "a defect" not in text and "a defect" in caplog.text
