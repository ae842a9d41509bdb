"""`seqtool demo`: start a local web demo, where you can watch a model work."""

import importlib.util
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from seqtool.errors import InputError
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules

if TYPE_CHECKING:
    from seqtool.training.checkpoint import Checkpoint

PACKAGES = ("starlette", "uvicorn", "python_multipart")
WORKING_SECONDS = 2  # that requests have to be answered in after Ctrl-C
ENDING_SECONDS = 1  # and then the model, to end what it is doing
CONNECTIONS = 512
LOCAL = ("127.0.0.1", "localhost", "::1")


def demo(config: DictConfig) -> None:
    """Serve the page until Ctrl-C; its address is printed before the models are loaded."""
    if missing := [package for package in PACKAGES if importlib.util.find_spec(package) is None]:
        raise InputError(f"seqtool demo needs {', '.join(missing)}: pip install 'seqtool[demo]'.")
    import uvicorn

    from seqtool.demo.app import make_app
    from seqtool.demo.engine import Engine
    from seqtool.demo.guards import HEADERS, TimedProtocol, check_address

    settings = typed(declarations.Demo, {name: config[name] for name in declarations.declared(declarations.Demo)})
    check_address(settings.host, settings.port, settings.token)
    checkpoints = find_checkpoints(names(config.checkpoint), modules(config.trust))
    token = settings.token or (None if settings.host in LOCAL else secrets.token_urlsafe(16))
    listening = bound_socket(settings.host, settings.port)
    port = listening.getsockname()[1]
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"Open http://{shown}:{port}/{'' if token is None else f'?token={token}'}  (Ctrl-C ends it)", flush=True)
    engine = Engine(partial(load, checkpoints, settings))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the application itself logs what goes wrong
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(engine, host=settings.host, port=port, token=token),
            http=TimedProtocol,
            headers=list(HEADERS.items()),
            access_log=False,
            log_config=None,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=WORKING_SECONDS,
            server_header=False,
            date_header=False,
            ws="none",
        )
    )
    with suppress(KeyboardInterrupt):  # the server has ended cleanly by then
        server.run(sockets=[listening])
    if engine.state == "failed":
        raise InputError(engine.problem)
    if not engine.ends(ENDING_SECONDS):
        os._exit(0)  # Python's own end would abort in a thread that is within torch


def find_checkpoints(paths: Sequence[str], trust: Sequence[str]) -> list["Checkpoint"]:
    """The checkpoints, verified. InputError for models of different tasks."""
    from seqtool.training.checkpoint import find

    if not paths:
        raise InputError("demo needs checkpoint=PATH, a run or checkpoint; two are shown side by side: a,b.")
    first, *others = checkpoints = [find(path, trust=trust) for path in paths]
    for other in others:
        if other.model_task != first.model_task:
            raise InputError(f"{first.path} and {other.path} are for different tasks: show them one at a time.")
    return checkpoints


def load(checkpoints: Sequence["Checkpoint"], settings: declarations.Demo) -> list[Any]:
    from seqtool import tasks
    from seqtool.runtime.devices import keep_memory, set_threads

    keep_memory()
    set_threads(settings.threads)
    machine = {"device": settings.device, "threads": settings.threads, "precision": settings.precision}
    return [tasks.of_checkpoint(each).load([each], **machine) for each in checkpoints]


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0].lower()  # `create_server` adds the address
        raise InputError(
            f"Cannot listen on host={host} port={port} ({reason}): choose another port, or port=0 for any that is free."
        ) from error
