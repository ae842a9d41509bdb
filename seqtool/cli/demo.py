"""`seqtool demo`: start a local web demo, where you can watch a model work."""

import importlib.util
import logging
import os
import secrets
import socket
from contextlib import suppress
from functools import partial
from typing import Any

from omegaconf import DictConfig

from seqtool.errors import InputError
from seqtool.runtime.configs import defaults
from seqtool.runtime.log import log
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules

PACKAGES = ("starlette", "uvicorn", "python_multipart")
SHUTDOWN_SECONDS = 2  # requests in progress have this time to finish after Ctrl-C
MODEL_STOP_SECONDS = 1  # the model has this time to stop once the server has shut down
KEEP_ALIVE_SECONDS = 15  # how long an idle connection stays open
MAX_CONNECTIONS = 512  # open at the same time; further ones are answered with status 503


def demo(config: DictConfig) -> None:
    """Serve the demo until Ctrl-C. Its address is printed before the models are loaded."""
    if missing := [package for package in PACKAGES if importlib.util.find_spec(package) is None]:
        raise InputError(f"seqtool demo needs {', '.join(missing)}: pip install 'seqtool[demo]'.")
    import uvicorn

    from seqtool.demo.app import make_app
    from seqtool.demo.engine import Engine
    from seqtool.demo.guards import HEADERS, LOCAL_HOSTS, TimedProtocol, check_address

    settings = typed(declarations.Demo, {name: config[name] for name in declarations.declared(declarations.Demo)})
    check_address(settings.host, settings.port, settings.token)
    from seqtool.runtime.devices import find_device  # imports torch
    from seqtool.runtime.precision import check_precision
    from seqtool.training.checkpoint import Checkpoint, find

    check_precision(find_device(settings.device), settings.precision)

    checkpoints, paths = [], names(config.checkpoint)
    for path in paths:
        try:
            checkpoints.append(find(path, trust=modules(config.trust)))
        except InputError as error:
            if ",".join(paths) != defaults("demo")["checkpoint"]:
                raise
            log.warning("%s It is left out.", error)
    if not checkpoints:
        needed = "demo needs checkpoint=PATH, runs or checkpoints, a,b; leave it out for the built-in models."
        raise InputError("None of the built-in models can be opened: give checkpoint=PATH." if paths else needed)
    listening_socket = bound_socket(settings.host, settings.port)
    port = listening_socket.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host  # IPv6 addresses need brackets in a URL
    token = settings.token or (None if host in LOCAL_HOSTS else secrets.token_urlsafe(16))
    query = "" if token is None else f"?token={token}"
    print(f"Open http://{host}:{port}/{query}  (Ctrl-C ends it)", flush=True)

    def load(checkpoint: Checkpoint) -> Any:
        """Load the checkpoint's model as a translator, captioner or generator."""
        from seqtool import tasks
        from seqtool.runtime.devices import keep_memory, set_threads

        keep_memory()
        set_threads(settings.threads)
        device_settings = {"device": settings.device, "threads": settings.threads, "precision": settings.precision}
        return tasks.task_of_checkpoint(checkpoint).load([checkpoint], **device_settings)

    engine = Engine([partial(load, checkpoint) for checkpoint in checkpoints])
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the application logs its errors itself
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the answer reports a malformed form
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(engine, host=settings.host, port=port, token=token),
            http=TimedProtocol,
            headers=list(HEADERS.items()),
            access_log=False,
            log_config=None,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            server_header=False,
            date_header=False,
            ws="none",
        )
    )
    with suppress(KeyboardInterrupt):  # raised again by uvicorn after it has shut down
        server.run(sockets=[listening_socket])
    if engine.state == "failed":
        raise InputError(engine.problem)
    if not engine.ends(MODEL_STOP_SECONDS):
        os._exit(0)  # an ordinary exit would abort the process while one of its threads runs in torch


def bound_socket(host: str, port: int) -> socket.socket:
    """Open a socket that listens at this address. Raises InputError if that is impossible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0].lower()  # without the address in brackets
        raise InputError(
            f"Cannot listen on host={host} port={port} ({reason}): choose another port, or port=0 for any free one."
        ) from error
