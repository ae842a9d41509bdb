"""The web application of a demo: its page, and the JSON interface that the page and other clients use."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePath
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message

from seqtool.demo import answers
from seqtool.demo.engine import Engine
from seqtool.demo.guards import BODY_SECONDS, MAX_JSON_BYTES, MAX_UPLOAD_BYTES, Bodies, Guard, allowed_hosts
from seqtool.demo.requests import FIXED_SETTINGS, LIMITS, Request, offered_scenes
from seqtool.errors import InputError, is_out_of_memory
from seqtool.evaluation.captions import samples_of_run
from seqtool.runtime.files import finite_json, one_line
from seqtool.runtime.log import log
from seqtool.runtime.version import __version__
from seqtool.training.checkpoint import run_directory
from seqtool.view.report import WEB

MAX_PICTURES = 8  # the number of pictures in a request
DISCONNECT_SECONDS = 0.5  # the time between two checks whether a client is still connected
MAX_MESSAGE_LENGTH = 300  # the number of characters in an error message to a client
MAX_NAME_LENGTH = 200  # the number of characters in a picture's name
CLASSES = answers.Translate, answers.Score, answers.Why, answers.Generate, answers.Next, answers.Caption, answers.Inside
KINDS: dict[str, type[Request]] = {kind.__name__.lower(): kind for kind in CLASSES}  # by path in /api/
REFUSED_ERRORS = HTTPException, ClientDisconnect, TimeoutError, InputError, MemoryError, RuntimeError
mimetypes.add_type("text/javascript", ".js")  # Windows may have another type, with which browsers do not run scripts


class Json(JSONResponse):
    """A response with JSON as the commands write it: text without escapes, and null for numbers that are not finite."""

    def render(self, content: Any) -> bytes:
        return finite_json(content, separators=(",", ":")).encode("utf-8", "backslashreplace")


def make_app(engine: Engine, *, host: str, port: int, token: str | None) -> Starlette:
    """Make the application, which starts and stops the engine. `host` and `port` are where the server listens, and
    requests must send the `token`, unless it is None.
    """
    bodies, cookie = Bodies(), f"seqtool-token-{port}"  # a browser sends a cookie to every port of a host

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.stop()

    async def page(_: Http) -> Response:
        response = FileResponse(WEB / "demo.html")
        if token is not None:
            response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response

    async def model(_: Http) -> Response:
        state = {"state": engine.state, "problem": engine.problem}
        limits = {**LIMITS, "pictures": MAX_PICTURES}
        return Json({"version": __version__, **state, "models": describe(engine.models), "limits": limits})

    def samples(_: Http) -> Response:
        runs = [(model.name, run_directory(model.checkpoints[0].path)) for model in engine.models]
        return Json([samples_of_run(*run) for run in runs])

    async def answer(kind: type[Request], http: Http) -> Response:
        content_type = http.headers.get("content-type", "")
        is_form = issubclass(kind, answers.PictureRequest) and content_type.startswith("multipart/form-data")
        async with bodies.read(http, MAX_UPLOAD_BYTES if is_form else MAX_JSON_BYTES) as body:
            request = await request_from_form(http, body, kind) if is_form else kind.parse(body)
            return await answer_response(http, engine, request)

    routes = [
        Route("/", page),
        Mount("/web", StaticFiles(directory=WEB)),
        Route("/api/model", model),
        Route("/api/samples", samples),
        Route("/api/scenes", lambda _: Json(offered_scenes())),
        *(Route(f"/api/{name}", partial(answer, kind), methods=["POST"]) for name, kind in KINDS.items()),
    ]
    return Starlette(
        routes=[Mount("/", routes=routes, middleware=[Middleware(Guard, token=token, cookie=cookie)])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts(host), www_redirect=False)],
        exception_handlers={**dict.fromkeys(REFUSED_ERRORS, refusal_response), Exception: internal_error},
        lifespan=lifespan,
    )


async def request_from_form(http: Http, body: bytes, kind: type[Any]) -> Request:
    """Parse a form, which has files named `images` and the other fields of the request as JSON in `request`."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async with Http(http.scope, receive).form(max_files=MAX_PICTURES, max_fields=1) as form:
        fields = form.get("request", "{}")
        request: answers.PictureRequest = kind.parse(fields.encode() if isinstance(fields, str) else b"")
        for file in form.getlist("images"):
            if not isinstance(file, UploadFile):
                raise InputError("'images' must be files.")
            name = PurePath((file.filename or "").replace("\\", "/")).name[:MAX_NAME_LENGTH] or "picture"
            request.images.append((name, await file.read()))
    return request


async def answer_response(http: Http, engine: Engine, request: Request) -> Response:
    """Return the engine's answer as JSON. The request leaves the queue if the client disconnects."""
    answer = asyncio.ensure_future(engine.ask(request))
    while not answer.done():
        await asyncio.wait({answer}, timeout=DISCONNECT_SECONDS)
        if not answer.done() and await http.is_disconnected():
            answer.cancel()
            raise ClientDisconnect
    return await run_in_threadpool(Json, answer.result())


def describe(models: Sequence[Any]) -> list[dict[str, Any]]:
    """Describe the models for the page. If two models are of the same run, names include the checkpoints."""
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        names = [f"{model.name}, {model.checkpoints[0].path.name}" for model in models]
    return [
        {
            "name": name,
            "command": model.command,
            "attends": model.attends,
            "hard": getattr(model.models[0], "hard", False),  # whether its attention chooses locations
            "parameters": model.checkpoints[0].parameters,
            "settings": {key: value for key, value in vars(model.settings).items() if key not in FIXED_SETTINGS},
        }
        for name, model in zip(names, models, strict=True)
    ]


async def refusal_response(_: Http, error: Any) -> Response:
    """Answer with the error message, cut to one short line because it may quote the request. The connection is closed,
    since the rest of the request may not have arrived.
    """
    status, text, headers = 400, str(error), {"connection": "close"}
    if is_out_of_memory(error):
        status, text = 503, "Out of memory: ask for less at once, or lower beam, n_best or max_length."
    elif isinstance(error, RuntimeError):
        raise error  # a bug, which `internal_error` reports
    elif isinstance(error, TimeoutError):
        status, text = 408, f"The request did not arrive within {BODY_SECONDS:.0f} seconds."
    elif isinstance(error, HTTPException):
        status, text, headers = error.status_code, error.detail, {**headers, **(error.headers or {})}
    return PlainTextResponse(f"{one_line(text)[:MAX_MESSAGE_LENGTH]}\n", status, headers)


async def internal_error(_: Http, error: Exception) -> Response:
    """Log an unexpected error and answer with a general message."""
    log.error("A request could not be answered.", exc_info=error)
    return PlainTextResponse("The model could not answer this request; the server's log says why.\n", 500)
