"""The web application of a demo: its page, and the JSON interface that the page uses too."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from PIL.Image import Image
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from seqtool.demo import answers, scenes
from seqtool.demo.engine import Asked, BusyError, Engine
from seqtool.demo.guards import App, Guard, RefusedError
from seqtool.demo.requests import CHARACTERS, SENTENCES, TEXT, Request
from seqtool.errors import InputError, OutOfMemoryError, is_out_of_memory
from seqtool.runtime.files import one_line
from seqtool.runtime.version import __version__
from seqtool.view.html import WEB

PICTURES = 8  # of a request
LOOK = 0.5  # seconds between two looks at whether a client is still there
SAID = 300  # letters of what is said of a request that is refused
NAME = 200  # letters of a picture's name
KINDS = {".js": "text/javascript", ".css": "text/css"}
PAGE = "demo.html"


class Json(JSONResponse):
    """JSON as the commands write it: text as it stands, and null for numbers that are not finite."""

    def render(self, content: Any) -> bytes:
        try:
            text = _written(content)
        except ValueError:
            text = _written(json.loads(json.dumps(content, ensure_ascii=False), parse_constant=lambda _: None))
        return text.encode("utf-8", "backslashreplace")


def _written(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def make_app(engine: Engine, *, host: str, port: int, token: str | None) -> App:
    """The application behind its guards; `host`, `port` and `token`: see `guards.Guard`."""

    @asynccontextmanager
    async def life(_: Starlette) -> Any:
        engine.start()
        yield
        engine.stop()

    def posted(kind: Callable[[Request], Asked]) -> Callable[[Http], Awaitable[Response]]:
        async def endpoint(http: Http) -> Response:
            return await _answered(http, engine, kind(Request(await http.body())))

        return endpoint

    async def caption(http: Http) -> Response:
        request, images = await _pictures(http)
        return await _answered(http, engine, answers.caption(request, images))

    async def model(_: Http) -> Response:
        return Json(_described(engine))

    async def offered(_: Http) -> Response:
        return Response(built_in, media_type="application/json")

    files = {path.name: path.read_bytes() for path in WEB.iterdir() if path.suffix in KINDS}
    page, built_in = (WEB / PAGE).read_bytes(), json.dumps(scenes.offered())

    async def start(_: Http) -> Response:
        return Response(page, media_type="text/html")

    async def file(http: Http) -> Response:
        name = http.path_params["name"]
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        return Response(files[name], media_type=KINDS[PurePath(name).suffix])

    kinds = {
        **{"translate": answers.translate, "score": answers.score, "why": answers.why},
        **{"generate": answers.generate, "next": answers.following},
    }
    routes = [
        Route("/", start, methods=["GET"]),
        Route("/web/{name}", file, methods=["GET"]),
        Route("/api/model", model, methods=["GET"]),
        Route("/api/scenes", offered, methods=["GET"]),
        Route("/api/caption", caption, methods=["POST"]),
        *(Route(f"/api/{name}", posted(kind), methods=["POST"]) for name, kind in kinds.items()),
    ]
    handlers: Any = {InputError: _refused, BusyError: _busy, HTTPException: _failed, ClientDisconnect: _gone}
    handlers |= {MultiPartException: _refused, RefusedError: _stopped, Exception: _broken}
    handlers |= {RuntimeError: _overloaded, MemoryError: _overloaded, OutOfMemoryError: _overloaded}
    inner = Starlette(routes=routes, exception_handlers=handlers, lifespan=life)
    return Guard(inner, host=host, port=port, token=token)


async def _answered(http: Http, engine: Engine, asked: Asked) -> Response:
    """The engine's answer as JSON; a request whose client has gone is taken back, if it still waits."""
    answer = asyncio.ensure_future(engine.ask(replace(asked, end=lambda found: Json(asked.end(found)))))
    while True:
        await asyncio.wait({answer}, timeout=LOOK)
        if answer.done():
            response: Response = answer.result()
            return response
        if await http.is_disconnected():
            answer.cancel()
            raise ClientDisconnect


async def _pictures(http: Http) -> tuple[Request, list[tuple[str, bytes | Image]]]:
    """The fields of a request for captions, and its pictures with their names: a form with `images` and the fields in
    `request`, or JSON with a built-in `scene`.
    """
    if not http.headers.get("content-type", "").startswith("multipart/form-data"):
        request = Request(await http.body())
        described = request.object("scene")
        if described is None:
            raise InputError("Send pictures as a form with files named 'images', or a 'scene'.")
        return request, [("scene", scenes.drawn(described))]
    async with http.form(max_files=PICTURES, max_fields=1, max_part_size=1 << 20) as form:
        fields = form.get("request", "{}")
        request = Request(fields.encode() if isinstance(fields, str) else b"")
        images: list[tuple[str, bytes | Image]] = []
        for one in form.getlist("images"):
            if not isinstance(one, UploadFile):
                raise InputError("'images' must be files.")
            name = PurePath((one.filename or "").replace("\\", "/")).name[:NAME] or "picture"
            images.append((name, await one.read()))
    if not images:
        raise InputError("The form has no file named 'images'.")
    return request, images


def describe(models: Sequence[Any]) -> list[dict[str, Any]]:
    """What the page says of the models; two of one run are told apart by their checkpoints."""
    names = [one.name for one in models]
    if len({*names}) < len(names):
        names = [f"{one.name}, {', '.join(checkpoint.path.name for checkpoint in one.checkpoints)}" for one in models]
    return [_description(one, name) for one, name in zip(models, names, strict=True)]


def _description(one: Any, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "command": one.command,
        "attends": one.attends,
        "parameters": sum(checkpoint.parameters for checkpoint in one.checkpoints),
        "settings": _settings(one),
    }


def _settings(predictor: Any) -> dict[str, Any]:
    """A model's settings for decoding, which a request can change."""
    return {name: value for name, value in vars(predictor.settings).items() if name not in ("precision", "batch_size")}


def _described(engine: Engine) -> dict[str, Any]:
    limits = {"sentences": SENTENCES, "characters": CHARACTERS, "text": TEXT, "pictures": PICTURES}
    state = {"state": engine.state, "problem": engine.problem}
    return {"version": __version__, **state, "models": engine.about, "limits": limits}


async def _refused(_: Http, error: Exception) -> Response:
    """One line, however much of what was sent the message repeats."""
    return PlainTextResponse(f"{one_line(str(error))[:SAID]}\n", 400)


async def _stopped(_: Http, error: Any) -> Response:
    stopped: Response = error.answer()
    return stopped


async def _busy(_: Http, __: Exception) -> Response:
    return PlainTextResponse("Too many requests are waiting: try again in a moment.\n", 503, {"retry-after": "1"})


async def _overloaded(_: Http, error: Exception) -> Response:
    """The server ran out of memory; any other RuntimeError is a defect."""
    if not is_out_of_memory(error):
        raise error
    return PlainTextResponse("Out of memory: ask for less at once, or lower beam, n_best or max_length.\n", 503)


async def _failed(_: Http, error: Exception) -> Response:
    status = getattr(error, "status_code", 400)
    return PlainTextResponse(f"{getattr(error, 'detail', error)}\n", status)


async def _gone(_: Http, __: Exception) -> Response:
    return PlainTextResponse("", 400)


async def _broken(_: Http, __: Exception) -> Response:
    """Starlette raises the error again after this answer, and the guard logs it."""
    return PlainTextResponse("The model could not answer this request; the server's log says why.\n", 500)
