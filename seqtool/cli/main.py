"""The command line: `seqtool COMMAND [key=value …]`, in front of Hydra, which is imported only when a command runs."""

import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from seqtool.cli import COMMANDS
from seqtool.cli import help as help_texts
from seqtool.errors import InputError, full_disk, naming, out_of_memory, printable
from seqtool.runtime.files import config_directory
from seqtool.runtime.spinning import limit_spinning
from seqtool.runtime.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from seqtool.cli.arguments import ConfigFiles

FUNCTIONS = {
    "eval": ("evaluate", "evaluate"),
    "report": ("report", "write_report"),
}  # others are named like their command
MEMORY = {  # what takes most memory in a command
    "prepare": "data.processes",
    "train": "train.batch_size, the model's sizes (model.*) or data.processes",
    "generate": "n or max_length",
    "score": "the length of the lines, or choose another device",
    "demo": "the length of the texts, or choose another device",
}

ENDING = signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
INTERRUPTED = 130  # the status of a command that Ctrl-C ended, and of a training that any signal stopped

# seqtool places runs and caches itself: Hydra makes no directory and writes no log.
HYDRA = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)


def main() -> None:
    """The installed command. Exits with 0, with 2 after one sentence about the user's input, or with 130 if stopped."""
    gc.disable()  # until everything is imported: garbage collection would take a third of a short run
    ending = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]  # as SIGHUP is under nohup
    for number in ending:  # so that nothing half-written is left behind
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by <&- and >&-
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # whatever the locale
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        status = run(sys.argv[1:], config_directory())
    finally:
        for number in ending:  # while Python exits, an exception would print a traceback
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    if status == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C while Python exits would print a traceback
    sys.exit(status)


def run(arguments: Sequence[str], configs: Path) -> int:
    """Run one command line with the configurations in `configs` and return the exit status."""
    limit_spinning()
    try:
        with naming("standard output"):  # errors of files already have their names
            status = _dispatch(list(arguments), configs)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `seqtool … | head`: the reader has closed it
        _forget_output()
        return 1
    except (InputError, OSError) as error:
        _say(error)
        try:
            sys.stdout.flush()
        except OSError:  # its disk is full
            _forget_output()
        return 2
    return status


def _forget_output() -> None:
    """Discard buffered output, so that the flush at exit does not complain that it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: InputError | OSError) -> None:
    """Tell the user what is wrong: one line, whatever characters file names and texts contain."""
    if os.environ.get("SEQTOOL_DEBUG") == "1":
        traceback.print_exception(error)
    sentence = printable(_sentence(error))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from seqtool.runtime.distributed import already_reported  # imports torch

        if already_reported(error, sentence):  # by another of the processes that torchrun started
            return
    print(f"seqtool: {sentence}", file=sys.stderr)


def _dispatch(arguments: list[str], configs: Path) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        is_of_command = rest and rest[0] in COMMANDS
        print(help_texts.command(rest[0], configs, rest[1:]) if is_of_command else help_texts.overview(configs))
    elif command == "--version":
        print(f"seqtool {__version__}")
    elif command == "--completion":
        print(help_texts.completion(rest[0] if rest else ""))
    elif command == "--complete":
        print("\n".join(help_texts.complete(rest[0] if rest else "", configs)))
    elif command not in COMMANDS:
        from seqtool.settings import sentence, unknown

        raise InputError(sentence([unknown(command, COMMANDS, kind="command")]))
    elif "--help" in rest or "-h" in rest:
        print(help_texts.command(command, configs, rest))
    else:
        return _compose_and_call(command, rest, configs)
    return 0


class _Carried(BaseException):
    """Carries a command's exception past Hydra, which prints a line of its own for each Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _compose_and_call(command: str, arguments: Sequence[str], configs: Path) -> int:
    """Compose the configuration and call the command's function: once, or per job with -m; gives the exit status."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict, read_write

    from seqtool.cli import arguments as ours
    from seqtool.cli.setting_errors import check_files, compose, explained, hydra_of

    options, written, paths = ours.split(arguments, command)
    files = ours.config_files(arguments, command, configs)
    check_files(written, files)
    settings = ours.prepared(written, paths, files)
    _log_to_stderr()
    if options.multirun:
        return _sweep(settings, files)
    if options.cfg:
        with explained(settings, files, sweep=False), hydra_of(files) as (hydra, search):
            hydra.show_cfg(command, [*HYDRA, *search, *settings], options.cfg, options.package, options.resolve)
        return 0
    config = compose(settings, files, sweep=False)
    HydraConfig.instance().set_config(config)  # keeps a copy of what is deleted here
    with read_write(config), open_dict(config):
        del config["hydra"]
    if not _call(config, files, settings) and "TORCHELASTIC_RUN_ID" not in os.environ:
        return INTERRUPTED  # so that a script does not continue; torchrun would start it again
    return 0


def _sweep(settings: Sequence[str], files: "ConfigFiles") -> int:
    """Have Hydra run several jobs, or start them with a launcher; gives the exit status."""
    from seqtool.cli.arguments import quote
    from seqtool.cli.setting_errors import explained, hydra_of
    from seqtool.cli.sweeps import Sweep, added

    sweep = Sweep(_say, files.command)

    def job(config: "DictConfig") -> None:
        limit_spinning()  # again, as Hydra's launchers may start other processes
        _log_to_stderr()
        try:
            sweep.run(config, lambda: _call(config, files, settings))
        except Exception as error:
            raise _Carried(error) from error

    try:
        with (
            tempfile.TemporaryDirectory(prefix="seqtool-") as scratch,
            explained(settings, files, sweep=True),
            hydra_of(files) as (hydra, search),
        ):
            overrides = [*HYDRA, *search, "hydra.sweep.subdir=.", *added(settings, files)]
            if not any(setting.startswith(("hydra/launcher", "hydra.launcher")) for setting in settings):
                # Other launchers pass jobs to other machines in Hydra's own directory, multirun/DATE/TIME.
                overrides.append(f"hydra.sweep.dir={quote(scratch)}")  # for multirun.yaml
            with naming("multirun.yaml"):  # of Hydra's own files; errors of a job are carried past this
                hydra.multirun(files.command, job, overrides)
    except _Carried as carried:
        raise carried.error from None
    if len(sweep.runs) > 1 and os.environ.get("RANK", "0") == "0":
        from seqtool.cli.inspect import compare  # imports torch, which the runs have imported already

        compare(sweep.own_settings())
    return sweep.status()


def _call(config: "DictConfig", files: "ConfigFiles", settings: Sequence[str]) -> bool:
    """Call the command's function; False if it was stopped early."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from seqtool.cli.arguments import read_names, stored_groups
    from seqtool.cli.setting_errors import check, check_name
    from seqtool.settings import plain

    command = files.command
    read_names(config, files)
    values = plain(config)
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        needed = " and ".join(f"{key}=…" for key in missing)
        raise InputError(f"{command} needs {needed} (see seqtool {command} --help).")
    check_name(config)
    stored = "data" in stored_groups(command, settings, values.get("run"))
    check(values, None if stored else HydraConfig.get().runtime.choices.get("data"), files)
    name, function = FUNCTIONS.get(command, (command, command))
    module = importlib.import_module(f"seqtool.cli.{name}")
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        with out_of_memory(lambda: f"in {command}: lower {MEMORY.get(command, 'batch_size, beam or max_length')}."):
            return getattr(module, function)(config) is not False
    except OmegaConfBaseException as error:
        removed = [setting for setting in settings if setting.startswith("~")]
        if not removed:
            raise
        raise InputError(f"{' '.join(removed)} takes away what {command} needs: write key=value.") from error


def _log_to_stderr() -> None:
    """Log to standard error, since standard output is for results."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    for package in ("seqtool", "hydra"):
        logging.getLogger(package).setLevel(logging.INFO)


def _sentence(error: InputError | OSError) -> str:
    if isinstance(error, InputError) or error.strerror is None:
        return str(error)
    if error.filename is None:
        return f"{error.strerror}."
    if (full := full_disk(error)) is not None:
        return f"{full} and try again."
    others = "" if error.filename2 is None else f" or '{error.filename2}'"
    return f"'{error.filename}'{others} cannot be used: {error.strerror[0].lower()}{error.strerror[1:]}."
