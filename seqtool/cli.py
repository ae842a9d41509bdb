"""The command line: `seqtool COMMAND [key=value …]`, in front of Hydra.

Nothing here imports torch, and Hydra is imported only when a command runs, so that help is instant.
"""

import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from seqtool import __version__
from seqtool.errors import InputError, full_disk, naming

if TYPE_CHECKING:
    from omegaconf import DictConfig

FUNCTIONS = {name: name for name in ("prepare", "train", "translate", "caption")} | {"eval": "evaluate"}
COMMANDS = (*FUNCTIONS, "inspect")

# Runs and caches are ours to place: Hydra makes no directory and writes no log.
HYDRA = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)


def main() -> None:
    """The installed command. Exits with 0, with 2 after one sentence about the user's input, or with 130."""
    gc.disable()  # until all is imported: none of it is garbage, and looking through it is a third of a short run
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that files half-written are removed on the way out
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # whatever the locale says
            stream.reconfigure(encoding="utf-8", errors=errors)
    sys.exit(run(sys.argv[1:], config_directory()))


def run(arguments: Sequence[str], configs: Path) -> int:
    """Run one command line with the configurations in `configs` and return the exit status."""
    debug = os.environ.get("SEQTOOL_DEBUG") == "1"
    try:
        with naming("standard output"):  # every file says its own
            _dispatch(list(arguments), configs)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `seqtool … | head`: the reader has left
        _forget_output()
        return 1
    except (InputError, OSError) as error:
        if debug:
            traceback.print_exc()
        print(f"seqtool: {_sentence(error)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # its disk is full
            _forget_output()
        return 2
    return 0


def config_directory() -> Path:
    """The configurations: the package's copy where it is installed from a wheel, otherwise the checkout's."""
    package = Path(__file__).resolve().parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def _forget_output() -> None:
    """The flush at exit must not complain about what standard output could not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str], configs: Path) -> None:
    from seqtool import usage

    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        print(usage.overview())
    elif command == "--version":
        print(f"seqtool {__version__}")
    elif command == "--completion":
        print(usage.completion(rest[0] if rest else ""))
    elif command == "--complete":
        print("\n".join(usage.complete(rest[0] if rest else "", configs)))
    elif command not in COMMANDS:
        from seqtool.config import sentence, unknown

        raise InputError(sentence([unknown(command, COMMANDS, kind="command")]))
    elif "--help" in rest or "-h" in rest:
        print(usage.command(command, configs, rest))
    elif command == "inspect":
        if len(rest) != 1:
            raise InputError("inspect needs one path: seqtool inspect PATH.")
        from seqtool.commands.inspect import inspect

        inspect(rest[0])
    else:
        _compose_and_call(command, rest, configs)


class _Carried(BaseException):
    """An exception of a command on its way past Hydra, which prints a line of its own for each Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _compose_and_call(command: str, arguments: Sequence[str], configs: Path) -> None:
    """Compose the configuration of `command` and call its function: once or, with -m, once a job."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from seqtool import arguments as ours

    options, settings = ours.split(arguments)
    settings = [ours.quoted(setting) for setting in settings]

    def task(config: "DictConfig") -> None:
        try:
            _call(command, config)
        except Exception as error:
            removed = [setting for setting in settings if setting.startswith("~")]
            if removed and isinstance(error, OmegaConfBaseException):
                error = InputError(f"{' '.join(removed)} takes away what {command} needs: write key=value.")
            raise _Carried(error) from error

    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors reach us rather than being printed
    _log_to_stderr()
    arguments_before = sys.argv
    with ExitStack() as stack:
        overrides = [*HYDRA, *settings]
        if "--multirun" in options:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="seqtool-"))  # for multirun.yaml
            overrides = [*HYDRA, f"hydra.sweep.dir={ours.quote(scratch)}", "hydra.sweep.subdir=."]
            overrides += map(ours.numbered, settings)
        sys.argv = [f"seqtool {command}", *options, *overrides]
        try:
            hydra.main(version_base="1.3", config_path=str(configs), config_name=command)(task)()
        except _Carried as carried:
            raise carried.error from None
        except (HydraException, OmegaConfBaseException) as error:
            raise InputError(ours.explain(error, settings, configs, command)) from error
        except ValueError as error:  # a group that is null or a list of lists; a command's own come as _Carried
            raise InputError(f"{str(error).rstrip('.')} (see seqtool {command} --help).") from error
        finally:
            sys.argv = arguments_before


def _call(command: str, config: "DictConfig") -> None:
    from omegaconf import OmegaConf

    from seqtool.config import plain

    plain(config)  # refuses what cannot be resolved, before any work starts
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        needed = " and ".join(f"{key}=…" for key in missing)
        raise InputError(f"{command} needs {needed} (see seqtool {command} --help).")
    function = FUNCTIONS[command]
    module = importlib.import_module(f"seqtool.commands.{function}")
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    getattr(module, function)(config)


def _log_to_stderr() -> None:
    """Standard output is for results."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    for package in ("seqtool", "hydra"):
        logging.getLogger(package).setLevel(logging.INFO)


def _sentence(error: InputError | OSError) -> str:
    if isinstance(error, InputError) or error.filename is None or error.strerror is None:
        return str(error) if isinstance(error, InputError) or error.strerror is None else f"{error.strerror}."
    if (full := full_disk(error)) is not None:
        return f"{full[:-1]}; make room and try again."
    others = "" if error.filename2 is None else f" or '{error.filename2}'"
    return f"'{error.filename}'{others} cannot be used: {error.strerror[0].lower()}{error.strerror[1:]}."
