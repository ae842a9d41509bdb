"""Tests of the demo's server: its answers equal those of the commands, and hostile requests do no harm."""

import asyncio
import contextlib
import http.client
import io
import json
import math
import random
import re
import shutil
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import pytest
import uvicorn
from demo_models import run, run_in_new_thread
from PIL import Image
from processes import Command
from safetensors.torch import load_file
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

import seqtool
from seqtool.decoding.beam_search import Lattice, length_penalty
from seqtool.demo import answers, guards, requests
from seqtool.demo.app import Json, describe
from seqtool.errors import InputError
from seqtool.predict.translator import Translator

Capture = pytest.CaptureFixture[str]
WORDS = ("I", "have", "a", "big", "cat", "but", "the", "old", "dog", "sees", "red", "house", ".")
UNUSUAL_SENTENCES = [
    *("", " ", "I have a big cat.", "<img src=x onerror=alert(1)>", "</script>", "عندي قطة كبيرة", "🐈 🏠", "a\tb"),
    *("I see the dog. " * 340, "\u202eabc", "ab" * 2500, "e\u0301", "NUL \x00 here", "x" * 5000),
]


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class Server:
    """`seqtool demo` in a separate process."""

    def __init__(self, directory: Path, *settings: str) -> None:
        command = ["demo", "device=cpu", "threads=1", "port=0", *settings]
        self.errors = (directory / "errors.txt").open("w+")
        self.process = Command(command, cwd=directory, stdout=PIPE, stderr=self.errors.fileno(), text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        address = re.match(r"Open http://(\S+):(\d+)/(?:\?token=(\S+))?", self.line)
        assert address, self.line
        self.port, self.token = int(address[2]), address[3]

    def ready(self, headers: dict[str, str] | None = None) -> "Server":
        for _ in range(600):
            if self.call("GET", "/api/model", None, headers).json["state"] == "ready":
                return self
            time.sleep(0.1)
        raise TimeoutError

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, content, headers or {})
            response = connection.getresponse()
            response_headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response.read(), response_headers)
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Answer:
        return self.call("POST", path, body, {"content-type": "application/json"})

    def memory(self) -> float:
        """Return the peak memory of the process in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) / 1e3

    def end(self) -> str:
        """Interrupt the process as Ctrl-C does, and return its standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(20)
        self.errors.seek(0)
        errors = self.errors.read()
        self.errors.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return errors


@pytest.fixture(scope="module")
def directory(shown_runs: Path) -> Iterator[Path]:
    """The directory of the runs, which is the working directory of the module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shown_runs)
        yield shown_runs


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    server = Server(directory, "checkpoint=runs/attend,runs/fixed").ready()
    yield server
    errors = server.end()
    assert "Traceback" not in errors and server.process.returncode == 0


def test_answers_equal_the_output_of_translate(directory: Path, server: Server, capsys: Capture) -> None:
    """Answers also equal those of the Python API, field by field, for unusual sentences too."""
    lines = strange_sentences(100)
    request = {"sentences": lines, "weights": True, "likeliest": 3, "settings": {"n_best": 2, "beam": 3}}
    answer = server.post("/api/translate", request)
    assert answer.status == 200
    (directory / "input.txt").write_text("".join(f"{line}\n" for line in lines))
    command = ["translate", "checkpoint=runs/attend", "input=input.txt", "format=jsonl", "weights=true", "likeliest=3"]
    assert run(*command, "n_best=2", "beam=3", "device=cpu", "threads=1") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answer.json["translations"] == printed
    translator = seqtool.load("runs/attend", device="cpu", n_best=2, beam=3)
    assert isinstance(translator, Translator)
    python = translator.hypotheses(lines, attention=True, likeliest=3)
    for line, hypotheses in zip(answer.json["translations"], python, strict=True):
        records = [hypothesis.record(weights=True) for hypothesis in hypotheses]
        assert line["translations"] == json.loads(json.dumps(records))


def test_without_arguments_the_built_in_models_are_shown(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    """A built-in model that cannot be opened is left out with a message; one that the user names is refused."""
    for name, source in {"words": "attend", "soft": "scenes", "hard": "scenes", "text": "text"}.items():
        assert run("export", f"runs/{source}", f"output={tmp_path}/builtin/{name}") == 0
    engines: list[Any] = []

    def serve(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
        sockets[0].close()
        engines[-1].start()
        while engines[-1].state == "loading":
            time.sleep(0.01)
        engines[-1].stop()

    monkeypatch.setattr("seqtool.demo.app.make_app", lambda engine, **_: engines.append(engine))
    monkeypatch.setattr(uvicorn.Server, "run", serve)
    monkeypatch.chdir(tmp_path)
    machine = ["device=cpu", "threads=1", "port=0"]
    assert run("demo", *machine) == 0 and not caplog.messages
    assert [model["name"] for model in describe(engines[-1].models)] == ["words", "soft", "hard", "text"]
    Path("builtin/hard/model.safetensors").write_bytes(b"damaged")
    assert run("demo", *machine) == 0
    assert [model["name"] for model in describe(engines[-1].models)] == ["words", "soft", "text"]
    problem = "Checkpoint builtin/hard is damaged: model.safetensors does not match manifest.json; use another one."
    assert caplog.messages == [f"{problem} It is left out."]
    assert run("demo", *machine, "checkpoint=builtin/words,builtin/hard") == 2
    assert problem in capsys.readouterr().err


def strange_sentences(count: int) -> list[str]:
    """Return `count` sentences: first hostile, empty, long and right-to-left ones, then some like the training data."""
    generator = random.Random(0)
    usual_count = count - len(UNUSUAL_SENTENCES)
    usual_sentences = (" ".join(generator.choices(WORDS, k=generator.randint(1, 20))) for _ in range(usual_count))
    return [*UNUSUAL_SENTENCES, *usual_sentences]


def test_a_prefix_of_tokens_is_not_tokenised_again(server: Server) -> None:
    """Text might be split into other tokens. Tokens outside of the vocabulary are unknown, but keep their spelling."""
    prefix = ["▁", "L", "a", "▁", "c", "a"]
    request = {"sentences": ["I have a big cat."] * 3, "prefixes": [prefix, "La ca", [*prefix, "</s>"]]}
    lines = server.post("/api/translate", request).json["translations"]
    by_tokens, by_text, with_unknown = (line["translations"][0]["tokens"] for line in lines)
    assert by_tokens[: len(prefix)] == prefix and by_text[: len(prefix)] != prefix
    assert with_unknown[: len(prefix) + 1] == [*prefix, "</s>"]
    for bad_prefixes in ([["a", 1]], ["a", "b"], [{}], "La", [["a", ""]]):
        refused = server.post("/api/translate", {"sentences": ["I have"], "prefixes": bad_prefixes})
        assert refused.status == 400 and "prefix" in refused.text


def test_a_text_prefix_works_as_in_translate(directory: Path, server: Server, capsys: Capture) -> None:
    (directory / "one.txt").write_text("I have a big cat.\n")
    (directory / "begins.txt").write_text("La casa\n")
    assert run("translate", "checkpoint=runs/attend", "input=one.txt", "prefix=begins.txt", "device=cpu") == 0
    request = {"sentences": ["I have a big cat."], "prefixes": ["La casa"]}
    translation = server.post("/api/translate", request).json["translations"][0]["translations"][0]
    assert translation["text"] + "\n" == capsys.readouterr().out and translation["text"].startswith("La casa")


def test_pairs_are_scored_as_by_the_command(directory: Path, server: Server, capsys: Capture) -> None:
    pairs = {"sources": ["I have a cat.", "The house."], "references": ["Tengo un gato.", ""]}
    for name, lines in pairs.items():
        (directory / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    files = ["sources=sources.txt", "references=references.txt", "format=jsonl", "likeliest=2", "device=cpu"]
    assert run("score", "checkpoint=runs/fixed", *files) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert server.post("/api/score", {**pairs, "likeliest": 2, "model": 1}).json["scores"] == expected


def test_inside_equals_what_python_returns(directory: Path) -> None:
    """What is shown inside a model equals `trace` and `attribute` in Python, for a model of each task."""
    models = [seqtool.load(directory / "runs" / name, device="cpu", threads=1) for name in ("attend", "scenes", "text")]
    translator, captioner, generator = models
    best = translator.hypotheses(["I have a cat."])[0][0]
    scene: dict[str, Any] = {"items": []}
    examples: list[tuple[Any, dict[str, Any]]] = [
        ((translator, "I have a cat.", best.pieces), {"source": "I have a cat.", "text": best.pieces}),
        ((captioner, requests.draw_scene(scene), "a red circle"), {"scene": scene, "text": "a red circle"}),
        ((generator, "the cat"), {"text": "the cat"}),
    ]
    for index, ((predictor, *example), fields) in enumerate(examples):
        assert inside(models, model=index, **fields) == predictor.trace(*example).record()
        other = predictor.target_vocabulary.piece(5)
        explained = inside(models, model=index, **fields, method="gradient", position=0, other=other)
        assert explained == predictor.attribute(*example, method="gradient", contrast={0: other}).record()


def inside(models: list[Any], **fields: Any) -> Any:
    return answers.Inside.parse(json.dumps(fields).encode()).answer(models)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("inside", {"text": "a"}, "A translation model needs 'source', a captioner a picture, and a language model "),
        ("inside", {"text": "a " * 70, "source": "a"}, "tokens, and at most 60 are read here: shorten it."),
        (
            "inside",
            {"text": ["a"] * 61, "source": "a"},
            "The text has 61 tokens; at most 60 can be looked into here: choose",
        ),
        ("inside", {"text": ["a", ""], "source": "a"}, "'text' has an empty token: leave it out."),
        ("inside", {"text": "a", "source": "a", "method": "magic"}, "Unknown method 'magic'; choose from gradient, "),
        ("inside", {"text": "a", "source": "a", "method": "gradient", "position": 9, "other": "b"}, "names token 9"),
        ("score", {"references": ["a"]}, "A translation model needs 'sources', one for each reference; a language "),
        ("score", {"sources": ["a"], "references": ["a"], "model": 2}, "'model' must be a whole number from 0 to 1."),
        ("generate", {"prompts": ["a"]}, "takes requests at /api/translate, not here."),
    ],
)
def test_messages_use_the_field_names_of_the_interface(
    server: Server, path: str, body: dict[str, Any], message: str
) -> None:
    answer = server.post(f"/api/{path}", body)
    assert answer.status == 400 and message in answer.text


def test_numbers_that_are_not_finite_are_null() -> None:
    content = {"text": 'NaN, "Infinity"', "values": [math.nan, -math.inf, 1.5]}
    assert Json(content).body.decode() == '{"text":"NaN, \\"Infinity\\"","values":[null,null,1.5]}'
    assert Json({"a": "\ud800ß"}).body == b'{"a":"\\ud800\xc3\x9f"}'


def test_the_tree_agrees_with_the_search(directory: Path) -> None:
    """For 100 sentences, the leaves are the n-best list with its scores, and their paths have the right tokens."""
    translator = seqtool.load("runs/attend", device="cpu", beam=4, n_best=4, max_length=15)
    assert isinstance(translator, Translator)
    vocabulary, penalty = translator.target_vocabulary, length_penalty("average", 0.6)
    generator = random.Random(1)
    for _ in range(100):
        sentence = " ".join(generator.choices(WORDS, k=generator.randint(1, 8)))
        lattice = Lattice()
        (n_best,) = translator.hypotheses([sentence], trace=lattice)
        steps = answers.search_tree(lattice, [hypothesis.pieces for hypothesis in n_best], penalty, vocabulary)["steps"]
        leaves = {node["rank"]: (t, node) for t, step in enumerate(steps) for node in step if "rank" in node}
        assert sorted(leaves) == list(range(len(n_best)))
        for rank, hypothesis in enumerate(n_best):
            t, leaf = leaves[rank]
            assert leaf["score"] == pytest.approx(hypothesis.score, abs=1e-5)
            assert leaf["log_probability"] == pytest.approx(hypothesis.log_probability, abs=1e-5)
            path = []
            while True:
                path.append(leaf["token"])
                if leaf["parent"] < 0:
                    break
                parent = steps[t - 1][leaf["parent"]]
                assert parent["log_probability"] >= leaf["log_probability"] and parent["fate"] == "kept"
                t, leaf = t - 1, parent
            assert [token for token in reversed(path) if token != "<end>"] == hypothesis.pieces


def test_why_shows_where_a_translation_left_the_beam(server: Server) -> None:
    """The best translation stays in the beam; an unlikely translation leaves it where likelier hypotheses were kept."""
    sentence = "I have a big cat."
    stay_count = 0
    for source in (sentence, "The old dog sees the house.", "a cat", "I see the red house."):
        best = server.post("/api/translate", {"sentences": [source]}).json["translations"][0]["translations"][0]
        answer = server.post("/api/why", {"source": source, "translation": best["text"]}).json
        if best["ended"] and answer["translation"]["tokens"][:-1] == best["tokens"]:  # the text has the same tokens
            assert answer["left"] is None
            assert answer["translation"]["score"] == pytest.approx(best["score"], abs=1e-4)
            stay_count += 1
    assert stay_count
    answer = server.post("/api/why", {"source": sentence, "translation": "hombre hombre hombre hombre"}).json
    left = answer["left"]
    assert left["beaten_by"] and left["step"] < len(answer["translation"]["tokens"])
    assert answer["translation"]["log_probability"] < answer["best"]["log_probability"]
    total = sum(answer["translation"]["log_probabilities"][: left["step"] + 1])
    assert all(hypothesis["log_probability"] >= total - 1e-4 for hypothesis in left["beaten_by"])


def test_uploaded_and_built_in_images_are_captioned(directory: Path, capsys: Capture) -> None:
    """Uploaded images get the captions of the command, built-in scenes can be edited, and bad images are refused."""
    server = Server(directory, "checkpoint=runs/scenes").ready()
    try:
        file = sorted(Path("data/scenes/test").iterdir())[0]
        fields = {"weights": True, "settings": {"hard_attention": "argmax"}}
        answer = server.call("POST", "/api/caption", *form([("a/../b\\c.png", file.read_bytes())], fields))
        assert run("caption", "checkpoint=runs/scenes", f"images={file}", "format=jsonl", "weights=true",
                   "hard_attention=argmax", "device=cpu") == 0  # fmt: skip
        expected = json.loads(capsys.readouterr().out)
        assert answer.json["captions"] == [{**expected, "image": "c.png"}]
        scene = server.call("GET", "/api/scenes").json["scenes"][0]
        answer = server.post("/api/caption", {"scene": scene, "picture": True, "prefix": "a"})
        assert answer.json["pictures"][0].startswith("data:image/png;base64,")
        assert answer.json["captions"][0]["captions"][0]["text"].startswith("a")
        for content, reason in BAD_IMAGES.items():
            refused = server.call("POST", "/api/caption", *form([("x.png", content)], {}))
            assert refused.status == 400 and reason in refused.text and "Traceback" not in refused.text
        memory_before = server.memory()
        too_many = server.call("POST", "/api/caption", *form([(f"{i}.png", file.read_bytes()) for i in range(9)], {}))
        assert too_many.status == 400
        large = server.call("POST", "/api/caption", *form([(f"{i}.png", LARGEST_IMAGE) for i in range(2)], {}))
        assert large.status == 200 and len(large.json["captions"]) == 2
        for refused in send_mutated_forms(server, file.read_bytes(), 60, seed=0):
            assert refused.status in (200, 400)
        assert server.memory() < memory_before + 300
        body, headers = form([("x.png", file.read_bytes())], {})
        head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "content-length": len(body)}.items())
        with contextlib.ExitStack() as stack:  # clients that stop sending do not block others
            for _ in range(30):
                stream = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                stream.sendall(f"POST /api/caption HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n".encode() + body[:-9])
            assert [server.call("POST", "/api/caption", body, headers).status for _ in range(5)] == [200] * 5
        for bad_scene, reason in BAD_SCENES:
            refused = server.post("/api/caption", {"scene": bad_scene})
            assert refused.status == 400 and reason in refused.text
    finally:
        assert "Traceback" not in server.end()


def form(files: list[tuple[str, bytes]], fields: Any) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a form with image files and a JSON field of settings."""
    parts = [b'--xx\r\nContent-Disposition: form-data; name="request"\r\n\r\n' + json.dumps(fields).encode()]
    for name, content in files:
        head = f'--xx\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n\r\n'.encode()
        parts.append(head + content)
    return b"\r\n".join([*parts, b"--xx--\r\n"]), {"content-type": "multipart/form-data; boundary=xx"}


def png(width: int, height: int) -> bytes:
    """Return a PNG file whose header states this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def encoded_image(kind: str, mode: str, side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind)
    return buffer.getvalue()


LARGEST_IMAGE = encoded_image("PNG", "RGBA", 5000)  # 25 million pixels, the largest that is accepted

BAD_IMAGES = {
    png(60_000, 60_000): "million pixels",
    png(5001, 5000): "has more than 25 million pixels",
    b"%!PS-Adobe-3.0 EPSF-3.0\n": "is not an image of a known format",
    b"": "is empty",
    encoded_image("GIF", "RGB", 4)[:20]: "x.png",
}
ITEM = {"shape": "circle", "colour": "red", "turned": 0, "box": [0, 0, 9, 9]}
BAD_SCENES = [
    ({"items": [ITEM] * 13}, "at most 12 objects"),
    ({"items": [{**ITEM, "shape": "dog"}]}, "Unknown shape"),
    ({"items": [{**ITEM, "box": [0, 0, 0, 5]}]}, "within the picture"),
    ({"items": [{**ITEM, "box": [0, 0, 5, 1e9]}]}, "four whole numbers"),
    ({"items": [{**ITEM, "more": 1}]}, "nothing else"),
    ({"items": [], "clutter": -1}, "whole number"),
    ({"file": "/etc/passwd"}, "'scene' must have 'items'"),
    (["x"], "must be an object"),
]


def test_offered_scenes_can_be_drawn() -> None:
    for scene in requests.offered_scenes()["scenes"]:
        assert requests.draw_scene(scene).size == (64, 64)
    with pytest.raises(InputError, match="Unknown colour"):
        requests.draw_scene({"items": [{**ITEM, "colour": "pink"}]})


def test_a_language_model_predicts_and_generates(directory: Path, capsys: Capture) -> None:
    """The server predicts the next symbols of a text, and generates the same text as the command."""
    server = Server(directory, "checkpoint=runs/text").ready()
    try:
        prediction = server.post("/api/next", {"text": "the c", "likeliest": 3}).json
        assert [entry["token"] for entry in prediction["predicted"]] == ["t", "h", "e", "▁", "c"]
        (token, probability), (_, second_probability) = prediction["likeliest"][:2]
        assert len(prediction["likeliest"]) == 3 and probability >= second_probability > 0
        following = server.post("/api/next", {"text": f"the c{token.replace('▁', ' ')}"}).json
        assert following["predicted"][-1]["probability"] == pytest.approx(probability, rel=1e-4)
        texts = server.post("/api/generate", {"prompts": ["the"], "settings": {"max_length": 9}}).json["texts"]
        command = ["generate", "checkpoint=runs/text", "prompt=the", "max_length=9", "format=jsonl", "device=cpu"]
        assert run(*command) == 0
        assert texts == [json.loads(capsys.readouterr().out)]
        assert server.post("/api/translate", {"sentences": ["a"]}).status == 400
        for settings in ({"stop": ["a" * 101]}, {"stop": ["a"] * 11}, {"n": 20, "max_length": 500, "seed": -1}):
            assert server.post("/api/generate", {"prompts": ["the"], "settings": settings}).status == 400
        assert server.post("/api/generate", {"prompts": ["the"] * 200, "settings": {"max_length": 500}}).status == 400
        assert server.post("/api/next", {"text": "the " * 500}).status == 400
    finally:
        assert "Traceback" not in server.end()


def test_the_page_is_served_while_the_model_is_loading(directory: Path) -> None:
    """Ctrl-C ends the server within 5 seconds, with status 0, even while the model is loading."""
    server = Server(directory, "checkpoint=runs/attend")
    page = server.call("GET", "/")
    assert page.status == 200 and b'<script type="module" src="/web/demo.js">' in page.body
    assert server.call("GET", "/api/model").json["state"] in ("loading", "ready")
    for name in re.findall(r'"\./(\w+\.js)"', server.call("GET", "/web/demo.js").text):
        assert server.call("GET", f"/web/{name}").headers["content-type"].startswith("text/javascript")
    start = time.monotonic()
    assert server.end() == "" and time.monotonic() - start < 5 and server.process.returncode == 0


HOST = {"host": "evil.example"}
CLOSED = b'{"sentences":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
FORM = {"content-type": "multipart/form-data; boundary=xx"}
ATTACKS: dict[str, tuple[str, str, Any, dict[str, str], int]] = {
    "a foreign host": ("GET", "/", None, HOST, 400),
    "a foreign host with a port": ("POST", "/api/translate", {"sentences": ["a"]}, {"host": "evil.example:8000"}, 400),
    "localhost through a tunnel": ("GET", "/api/model", None, {"host": "localhost:9999"}, 200),
    "a page of another origin": (
        "POST", "/api/translate", {"sentences": ["a"]}, {"origin": "https://evil.example"}, 403
    ),
    "an origin that is null": ("POST", "/api/translate", {"sentences": ["a"]}, {"origin": "null"}, 403),
    "a cross-site request": (
        "POST", "/api/translate", {"sentences": ["a"]}, {"sec-fetch-site": "cross-site"}, 403
    ),
    "a path out of the directory": ("GET", "/web/../../../etc/passwd", None, {}, 404),
    "an escaped path out of the directory": ("GET", "/web/..%2f..%2fetc%2fpasswd", None, {}, 404),
    "an unknown page": ("GET", "/nowhere", None, {}, 404),
    "an unsupported method": ("PUT", "/api/translate", None, {}, 405),
    "deep JSON": ("POST", "/api/translate", b"[" * 10_000, {}, 400),
    "deep JSON that closes": ("POST", "/api/translate", CLOSED, {}, 400),
    "a number of thousands of digits": ("POST", "/api/translate", b'{"model": ' + b"9" * 50_000 + b"}", {}, 400),
    "invalid JSON": ("POST", "/api/translate", b"\xff\xfe", {}, 400),
    "a list instead of an object": ("POST", "/api/translate", [], {}, 400),
    "an empty body": ("POST", "/api/translate", b"", {}, 400),
    "unknown fields": ("POST", "/api/translate", {"sentences": ["a"], "file": "/etc/passwd"}, {}, 400),
    "unknown settings": ("POST", "/api/translate", {"sentences": ["a"], "settings": {"device": "cuda"}}, {}, 400),
    "a class of the server's": ("POST", "/api/translate", {"sentences": ["a"], "settings": {"mbr": "a.B"}}, {}, 400),
    "a file of the server's": (
        "POST",
        "/api/translate",
        {"sentences": ["a"], "settings": {"mbr": "bleu", "mbr_frequencies": "/etc/hostname"}},
        {},
        400,
    ),
    "a huge beam": ("POST", "/api/translate", {"sentences": ["a"], "settings": {"beam": 10**6}}, {}, 400),
    "a beam as text": ("POST", "/api/translate", {"sentences": ["a"], "settings": {"beam": "51"}}, {}, 400),
    "too much work": ("POST", "/api/translate", {"sentences": ["a"] * 1000, "settings": {"beam": 11}}, {}, 400),
    "too many predictions": ("POST", "/api/translate", {"sentences": ["a"] * 1000, "likeliest": 50}, {}, 400),
    "too many attention weights": (
        "POST",
        "/api/translate",
        {
            **{"sentences": ["a b " * 250] * 40, "weights": True},
            "settings": {"beam": 25, "n_best": 25, "max_length": 500, "min_length": 500},
        },
        {},
        400,
    ),
    "too much JSON for a caption": ("POST", "/api/caption", b"{}", {"content-length": str(3 << 20)}, 413),
    "long pairs": ("POST", "/api/score", {"sources": ["a b " * 4000], "references": ["a b " * 4000]}, {}, 400),
    "a long translation to compare": ("POST", "/api/why", {"source": "a", "translation": "a b " * 4000}, {}, 400),
    "nothing to translate": ("POST", "/api/why", {"source": " ", "translation": "a"}, {}, 400),
    "a tree with a coverage penalty": (
        "POST",
        "/api/translate",
        {"sentences": ["a"], "tree": True, "settings": {"coverage_penalty": 0.2}},
        {},
        400,
    ),
    "a beam of another type": ("POST", "/api/translate", {"sentences": ["a"], "settings": {"beam": "x"}}, {}, 400),
    "too many sentences": ("POST", "/api/translate", {"sentences": ["a"] * 1001}, {}, 400),
    "a long sentence": ("POST", "/api/translate", {"sentences": ["a" * 20_001]}, {}, 400),
    "a lone surrogate": ("POST", "/api/translate", b'{"sentences": ["\\ud800"]}', {}, 400),
    "too few prefixes": ("POST", "/api/translate", {"sentences": ["a", "b"], "prefixes": ["x"]}, {}, 400),
    "a long prefix": ("POST", "/api/translate", {"sentences": ["a"], "prefixes": ["x " * 5000]}, {}, 400),
    "an unknown model": ("POST", "/api/translate", {"sentences": ["a"], "model": 2}, {}, 400),
    "two trees": ("POST", "/api/translate", {"sentences": ["a", "b"], "tree": True}, {}, 400),
    "a tree of samples": (
        "POST", "/api/translate", {"sentences": ["a"], "tree": True, "settings": {"sample": True}}, {}, 400
    ),
    "captions of a translator": ("POST", "/api/caption", {"scene": {"items": []}}, {}, 400),
    "a form without an end": ("POST", "/api/caption", b"--xx\r\n", FORM, 400),
    "a form without a boundary": ("POST", "/api/caption", b"x", {"content-type": "multipart/form-data"}, 400),
}  # fmt: skip


def test_models_are_described_after_their_files_are_deleted(directory: Path, tmp_path: Path) -> None:
    """A run that is still training removes old checkpoints, such as that of the demo."""
    shutil.copytree(directory / "runs/attend", tmp_path / "attend")
    model = seqtool.load(tmp_path / "attend", device="cpu")
    weights = load_file(model.checkpoints[0].path / "model.safetensors")
    shutil.rmtree(tmp_path / "attend")
    (description,) = describe([model])
    assert description["name"] == "attend" and description["parameters"] == sum(
        tensor.numel() for tensor in weights.values()
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_get_one_clear_answer(server: Server, attack: str) -> None:
    """Answers have security headers and no traceback; a refusal is a single line."""
    method, path, body, headers, status = ATTACKS[attack]
    answer = server.call(method, path, body, headers)
    assert answer.status == status, answer.text
    assert "Traceback" not in answer.text and "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    if status != 200:
        assert len(answer.text.splitlines()) == 1 and len(answer.text) < 400


def test_an_endless_upload_is_cut_off(server: Server) -> None:
    """Uploads are limited by their declared length or, without one, by the bytes received; memory is bounded."""
    memory_before = server.memory()
    declared = server.call("POST", "/api/caption", b"x" * 100, {"content-length": str(200 << 20)})
    assert declared.status == 413
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        head = "POST /api/caption HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
        stream.sendall((head + "Content-Type: multipart/form-data; boundary=xx\r\n\r\n").encode())
        part = b'--xx\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        sent_bytes = 0
        with pytest.raises(OSError):
            stream.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            while sent_bytes < 200 << 20:
                stream.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
                sent_bytes += 1 << 20
        assert sent_bytes < 100 << 20
    assert server.memory() < memory_before + 300
    assert server.call("GET", "/api/model").status == 200


def test_a_token_is_required_if_other_machines_can_connect(directory: Path) -> None:
    server = Server(directory, "checkpoint=runs/attend", "host=0.0.0.0")
    try:
        token, body = server.token, {"sentences": ["a"]}
        assert token and len(token) >= 20
        for path in ("/", "/api/model", "/web/demo.js", "/?token=wrong", f"/?token={token[:-1]}"):
            answer = server.call("GET", path)
            assert answer.status == 401 and "A token is required" in answer.text
        assert server.call("POST", "/api/translate", body).status == 401
        page = server.call("GET", f"/?token={token}")
        cookie = page.headers["set-cookie"]
        assert page.status == 200 and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert server.call("GET", "/api/model", None, {"cookie": cookie.partition(";")[0]}).status == 200
        authorized = {"authorization": f"Bearer {token}"}
        assert server.call("GET", "/api/model", None, authorized).status == 200
        server.ready(authorized)
        long_request = {"sentences": ["I have a big cat. " * 20] * 500, "settings": {"beam": 10}}
        client = threading.Thread(
            target=lambda: server.call("POST", "/api/translate", long_request, authorized), daemon=True
        )
        client.start()
        time.sleep(0.5)
        assert client.is_alive()
    finally:
        assert "Traceback" not in server.end()  # Ctrl-C while a request is being answered
    assert server.process.returncode == 0


def test_mutated_requests_do_no_harm(server: Server) -> None:
    """Each of 300 requests gets a clear answer, and the server still works afterwards."""
    memory_before = server.memory()
    statuses = [answer.status for answer in send_mutated_requests(server, 300, seed=0)]
    assert set(statuses) <= {200, 400, 401, 403, 404, 405, 408, 411, 413, 421} and 400 in statuses
    assert server.memory() < memory_before + 300
    assert server.post("/api/translate", {"sentences": ["I have a cat."]}).status == 200


def send_mutated_requests(server: Server, count: int, *, seed: int) -> Iterator[Answer]:
    """Yield the answers to requests in which some bytes were changed, removed, repeated or inserted."""
    generator = random.Random(seed)
    requests_by_path = {
        "/api/translate": {"sentences": ["I have a cat."], "prefixes": [""], "tree": True, "settings": {"beam": 2}},
        "/api/score": {"sources": ["a"], "references": ["b"], "likeliest": 2, "weights": True, "model": 1},
        "/api/why": {"source": "a", "translation": "b"},
        "/api/inside": {"source": "a", "text": ["b"], "method": "gradient", "position": 0, "other": "a"},
        "/api/next": {"text": "a"},
        "/api/generate": {"prompts": ["a"], "settings": {"max_length": 3}},
        "/api/caption": {"scene": {"items": [ITEM], "clutter": 1}},
    }
    for _ in range(count):
        path = generator.choice(list(requests_by_path))
        yield _checked_answer(server, path, _mutate(json.dumps(requests_by_path[path]).encode(), generator), {})


def send_mutated_forms(server: Server, picture: bytes, count: int, *, seed: int) -> Iterator[Answer]:
    """Yield the answers to mutated forms with an image; half of the mutations change only the image."""
    generator = random.Random(seed)
    fields = {"likeliest": 2, "weights": True, "picture": True, "settings": {"beam": 2}}
    for _ in range(count):
        is_picture = generator.random() < 0.5
        content, headers = form([("a.png", _mutate(picture, generator) if is_picture else picture)], fields)
        yield _checked_answer(server, "/api/caption", content if is_picture else _mutate(content, generator), headers)


def _mutate(content: bytes, generator: random.Random) -> bytes:
    result = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        position = generator.randrange(len(result)) if result else 0
        kind = generator.randrange(4)
        if kind == 0 and result:
            result[position] = generator.randrange(256)
        elif kind == 1:
            del result[position : position + generator.randint(1, 20)]
        elif kind == 2:
            result[position:position] = result[position : position + 20] * generator.randint(1, 50)
        else:
            tokens = [b"null", b"1e999", b"-1", b'"', b"[", b"{}", b"\\u0000", b"NaN"]
            result[position:position] = generator.choice(tokens)
    return bytes(result)


def _checked_answer(server: Server, path: str, content: bytes, headers: dict[str, str]) -> Answer:
    """Return the answer to a request, which must not be a failure of the server."""
    answer = server.call("POST", path, content, headers)
    assert "Traceback" not in answer.text and answer.status != 500, (path, content, answer.text)
    return answer


def test_slow_and_vanishing_clients_do_not_disturb_others(server: Server) -> None:
    """Some clients send slowly, hang or disconnect; the remaining clients get correct answers."""
    stop, body = threading.Event(), json.dumps({"sentences": ["I have a big cat."] * 50}).encode()
    head = f"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def send_slowly() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as stream:
            for byte in head + body:
                if stop.wait(0.2):
                    return
                stream.sendall(bytes([byte]))

    threads = [threading.Thread(target=send_slowly, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            hanging = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            hanging.sendall(head + body[:-1])
            with socket.create_connection(("127.0.0.1", server.port)) as stream:
                stream.sendall(head + body)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.call("POST", "/api/translate", body), range(16)))
    stop.set()
    assert {answer.status for answer in answers} == {200}
    best = [line["translations"][0] for answer in answers for line in answer.json["translations"]]
    assert len(best) == 16 * 50 and len({translation["text"] for translation in best}) == 1
    # The last digit of torch's sigmoid depends on the other sentences of the batch.
    scores = [translation["log_probability"] for translation in best]
    assert scores == pytest.approx([scores[0]] * len(scores), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("checkpoint=runs/none", "There is no run or checkpoint at runs/none."),
        ("checkpoint=runs/attend port=70000", "port must be from 0 to 65,535, not 70000."),
        ("checkpoint=runs/attend token=short", "token= must have at least 16 letters, digits, - and _"),
        ("checkpoint=runs/attend host=192.0.2.7", "Cannot listen on host=192.0.2.7 port=8000"),
        ("checkpoint=runs/attend beam=3", "'beam' is not a setting of demo"),
        ("checkpoint=null", "demo needs checkpoint=PATH, runs or checkpoints, a,b; leave it out for the built-in"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    directory: Path, settings: str, message: str, capsys: Capture
) -> None:
    assert run("demo", *settings.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_port_in_use_is_reported(directory: Path, capsys: Capture) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert run("demo", "checkpoint=runs/attend", f"port={port}") == 2
    assert f"port={port} (address already in use)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        ([100, 100, 100], None),
        ([300, 300, 300], 413),
        ([200, 200], 503),
        ([100, None], ClientDisconnect),
        ([100, 0], TimeoutError),
        ([100], ValueError),
    ],
)
def test_memory_for_request_bodies_is_released(
    monkeypatch: pytest.MonkeyPatch, parts: list[int | None], end: Any
) -> None:
    """This holds for requests that are answered, too large, refused, cancelled, too slow, or that raise an error."""
    for name, value in (("MAX_HELD_BYTES", 350), ("SMALL_BODY_BYTES", 100), ("BODY_SECONDS", 0.1)):
        monkeypatch.setattr(guards, name, value)
    bodies, remaining = guards.Bodies(), list(parts)
    bodies.held = held_before = 200 if end == 503 else 0

    async def receive() -> Any:
        part = remaining.pop(0)
        if part == 0:
            await asyncio.Event().wait()
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"x" * part, "more_body": bool(remaining)}

    async def read() -> None:
        async with bodies.read(Request({"type": "http", "headers": []}, receive), 500) as body:
            assert bodies.held == len(body) == sum(part or 0 for part in parts)
            if end is ValueError:
                raise ValueError("a defect")

    try:
        run_in_new_thread(read)
    except HTTPException as error:
        assert error.status_code == end
    except Exception as error:
        assert type(error) is end
    else:
        assert end is None
    assert bodies.held == held_before


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes connections that send nothing, send their head slowly or do not read their answer.

    A connection whose request is being answered stays open.
    """
    monkeypatch.setattr(guards, "IDLE_SECONDS", 0.5)
    large_size = 64 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = b"ok" if scope["path"] == "/" else b"x" * large_size
            await asyncio.sleep(1.5 if scope["path"] == "/" else 0)
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    with serve_app(lambda _: app) as port, contextlib.ExitStack() as stack:
        silent, slow, answered, unread = (
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)) for _ in range(4)
        )
        unread.sendall(2 * b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")  # the second waits until the first is read
        slow.sendall(b"GET / HTTP/1.1\r\nHo")
        answered.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert silent.recv(100) == b"" and slow.recv(100) == b""
        assert answered.recv(1000).startswith(b"HTTP/1.1 200 OK")
        read_bytes = 0
        with contextlib.suppress(ConnectionError):
            while chunk := unread.recv(1 << 20):
                read_bytes += len(chunk)
        assert read_bytes < large_size


@contextlib.contextmanager
def serve_app(make: Callable[[int], Any]) -> Iterator[int]:
    """Serve the application that `make` returns for a port of this process, and yield the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        config = uvicorn.Config(make(port), http=guards.TimedProtocol, log_config=None, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(10)


def test_missing_packages_are_reported_with_a_command(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("demo", "checkpoint=runs/attend") == 2
    assert "pip install 'seqtool[demo]'" in capsys.readouterr().err
