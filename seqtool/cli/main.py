"""The command line, `seqtool COMMAND [key=value …]`. It is built on Hydra, which is imported only if a command runs."""

import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqtool.cli import COMMANDS
from seqtool.cli import help as help_texts
from seqtool.errors import InputError, full_disk, naming, out_of_memory, printable
from seqtool.runtime.files import config_directory
from seqtool.runtime.spinning import limit_spinning
from seqtool.runtime.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from seqtool.cli.arguments import ConfigFiles

# the modules and the functions of the commands whose names differ from theirs
MODULES = {"embed": "translate", "rescore": "score", "eval": "evaluate"}
FUNCTIONS = {"eval": "evaluate", "report": "write_report"}
MEMORY_SETTINGS = {  # what to lower if a command runs out of memory; by default DECODING_MEMORY_SETTINGS
    "prepare": "data.processes",
    "train": "train.batch_size, the model's sizes (model.*) or data.processes",
    "generate": "n or max_length",
    **dict.fromkeys(("score", "rescore", "embed"), "the length of the lines, or choose another device"),
    **dict.fromkeys(("inspect", "export", "check"), "the memory that other programs use"),
    "demo": "the length of the texts, or choose another device",
}
DECODING_MEMORY_SETTINGS = "batch_size, beam or max_length"

ENDING_SIGNALS = signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
INTERRUPTED = 130  # the exit status after Ctrl-C, and after any signal that stopped a training run

# seqtool makes the directories of runs and caches itself, so Hydra makes none and writes no log.
HYDRA_OVERRIDES = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)


def main() -> None:
    """Run the installed command. The exit status is 0, 2 after an error in the user's input, 1 if the reader of the
    output has closed it, or 128 plus the number of the signal that ended it, such as 130 after Ctrl-C.
    """
    # Garbage collection during imports would take a third of a short run. `call` turns it on after the imports.
    gc.disable()
    # A signal that the process was started to ignore, as nohup does with SIGHUP, stays ignored.
    handled_signals = [number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    for number in handled_signals:  # an orderly exit leaves no half-written files behind
        signal.signal(number, lambda signal_number, _: sys.exit(128 + signal_number))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed in the shell, by <&- or >&-
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)  # whatever the locale
    try:
        status = run(sys.argv[1:], config_directory())
    finally:
        for number in handled_signals:  # an exception while Python exits would print a traceback
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    if status == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C while Python exits would print a traceback
    sys.exit(status)


def run(arguments: Sequence[str], configs: Path) -> int:
    """Run one command line with the YAML files in `configs`, and return the exit status."""
    limit_spinning()
    try:
        with naming("standard output"):  # errors that concern other files have their names already
            status = _dispatch(list(arguments), configs)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head in `seqtool … | head`, has closed the pipe
        _discard_output()
        return 1
    except (InputError, OSError) as error:
        _report_error(error)
        try:
            sys.stdout.flush()
        except OSError:  # such as a full disk
            _discard_output()
        return 2
    return status


def _discard_output() -> None:
    """Discard buffered output, so that flushing it at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_error(error: InputError | OSError) -> None:
    """Print the error's message on one line, with escapes for unprintable characters in file names and texts."""
    if os.environ.get("SEQTOOL_DEBUG") == "1":
        traceback.print_exception(error)
    message = printable(_message(error))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from seqtool.runtime.distributed import already_reported  # imports torch

        if already_reported(error, message):  # another of the processes that torchrun started has printed it
            return
    print(f"seqtool: {message}", file=sys.stderr)


def _dispatch(arguments: list[str], configs: Path) -> int:
    """Print help, the version or a completion, or run a command. Returns the exit status."""
    first, *others = arguments or ["--help"]
    if first in ("--help", "-h", "help"):
        has_command = others and others[0] in COMMANDS
        print(help_texts.command(others[0], configs, others[1:]) if has_command else help_texts.overview(configs))
    elif first == "--version":
        print(f"seqtool {__version__}")
    elif first == "--completion":
        print(help_texts.completion(others[0] if others else ""))
    elif first == "--complete":
        print("\n".join(help_texts.complete(others[0] if others else "", configs)))
    elif first not in COMMANDS:
        from seqtool.settings import sentence, unknown

        raise InputError(sentence([unknown(first, COMMANDS, kind="command")]))
    elif "--help" in others or "-h" in others:
        print(help_texts.command(first, configs, others))
    else:
        return _compose_and_call(first, others, configs)
    return 0


class _JobError(BaseException):
    """Carries a job's exception, as its argument, past Hydra, which would print its own message for an Exception."""


def _compose_and_call(command: str, arguments: Sequence[str], configs: Path) -> int:
    """Compose the configuration and call the command's function; -m calls it for each job. Returns the exit status."""
    from seqtool.cli.arguments import read
    from seqtool.cli.setting_errors import explain_errors, initialise_hydra

    _log_to_stderr()
    options, settings, files = read(arguments, command, configs)
    if options.multirun:
        return _sweep(settings, files)
    if options.cfg:
        with explain_errors(settings, files, sweep=False), initialise_hydra(files) as (hydra, search_path):
            overrides = [*HYDRA_OVERRIDES, *search_path, *settings]
            hydra.show_cfg(command, overrides, options.cfg, options.package, options.resolve)
        return 0
    finished = call(composed(settings, files), files, settings, may_fork=True) is not False
    if not finished and "TORCHELASTIC_RUN_ID" not in os.environ:
        return INTERRUPTED  # so that a script does not continue; torchrun would restart the processes
    return 0


def composed(settings: Sequence[str], files: "ConfigFiles") -> "DictConfig":
    """The configuration of a command; Hydra's own settings are in `HydraConfig`."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict, read_write

    from seqtool.cli.setting_errors import compose

    config = compose(settings, files, sweep=False)
    HydraConfig.instance().set_config(config)  # copies the configuration, with the group `hydra`
    with read_write(config), open_dict(config):
        del config["hydra"]
    return config


def _sweep(settings: Sequence[str], files: "ConfigFiles") -> int:
    """Let Hydra run several jobs, or start them with a launcher. Returns the exit status."""
    from seqtool.cli.arguments import quote
    from seqtool.cli.setting_errors import explain_errors, initialise_hydra
    from seqtool.cli.sweeps import Sweep, force_swept_settings

    sweep = Sweep(_report_error, files.command)

    def job(config: "DictConfig") -> None:
        limit_spinning()  # in each job, since Hydra's launchers may start other processes
        _log_to_stderr()
        try:
            sweep.run(config, lambda: call(config, files, settings))
        except Exception as error:
            raise _JobError(error) from error

    try:
        with (
            tempfile.TemporaryDirectory(prefix="seqtool-") as temporary_directory,
            explain_errors(settings, files, sweep=True),
            initialise_hydra(files) as (hydra, search_path),
        ):
            overrides = [*HYDRA_OVERRIDES, *search_path, "hydra.sweep.subdir=.", *force_swept_settings(settings, files)]
            if not any(setting.startswith(("hydra/launcher", "hydra.launcher")) for setting in settings):
                # Hydra's multirun.yaml goes into a temporary directory. Launchers may need Hydra's own directory,
                # multirun/DATE/TIME, to pass jobs to other machines.
                overrides.append(f"hydra.sweep.dir={quote(temporary_directory)}")
            with naming("multirun.yaml"):  # the only file that Hydra writes itself; a _JobError is not affected
                hydra.multirun(files.command, job, overrides)
    except _JobError as job_error:
        raise job_error.args[0] from None
    if len(sweep.runs) > 1 and os.environ.get("RANK", "0") == "0":
        from seqtool.cli.inspect import compare  # imports torch, which the runs have imported already

        compare({run: sweep.distinct_overrides(number) for run, number in sweep.runs.items()})
    return sweep.status()


def call(config: "DictConfig", files: "ConfigFiles", settings: Sequence[str], *, may_fork: bool = False) -> Any:
    """Check the configuration and call the command's function. Returns its result; False if a signal stopped it.

    may_fork: whether several processes may share the work, where that takes less time
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from seqtool.cli.arguments import check, check_name, expand_names, stored_groups
    from seqtool.settings import plain

    command = files.command
    expand_names(config, files)
    values = plain(config)
    if missing_keys := sorted(OmegaConf.missing_keys(config)):
        placeholders = " and ".join(f"{key}=…" for key in missing_keys)
        raise InputError(f"{command} needs {placeholders} (see seqtool {command} --help).")
    check_name(config)
    is_stored = "data" in stored_groups(command, settings, values.get("run"))
    check(values, None if is_stored else HydraConfig.get().runtime.choices.get("data"), files)
    with _shared(config) if may_fork and command == "translate" else nullcontext():
        return _call(command, config, settings)


@contextmanager
def _shared(config: "DictConfig") -> Iterator[None]:
    """Let several processes translate within the context, with a share of the threads each, if that takes less time."""
    from seqtool.runtime import forks
    from seqtool.settings import plain

    with forks.sharing(_processes(plain(config))):
        if (process := forks.current) is not None:
            threads = forks.cores() if config.threads is None else config.threads
            config.threads = threads // process.size + (process.rank < threads % process.size)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                os.environ[name] = str(config.threads)  # read by torch and NumPy on import: idle threads busy-wait
        yield


def _processes(settings: dict[str, Any]) -> int:
    """The number of processes that should translate: 1 with attributions, which only the first would compute, with
    prefixes, which make batches of a few sentences, and where a setting's type is wrong, which `translate` explains.
    """
    from seqtool.runtime import forks
    from seqtool.settings import names
    from seqtool.settings.declarations import DEFAULT_MBR_SAMPLES, HYPOTHESES_PER_BATCH
    from seqtool.training.runs import located

    match settings:
        case {
            "checkpoint": checkpoint,
            "input": str() | None as file,
            "device": str() as device,
            "threads": int() | None as threads,
            "sample": bool() as sample,
            "beam": int() as beam,
            "n_best": int() as n_best,
            "mbr": str() | None as mbr,
            "mbr_samples": int() | None as mbr_samples,
            "batch_size": int() | None as batch_size,
            "attribution": None,
            "prefix": None,
        }:
            hypotheses = max(1, n_best if sample else beam)
            if mbr is not None:
                hypotheses = max(hypotheses, mbr_samples or DEFAULT_MBR_SAMPLES)
            batch = max(1, HYPOTHESES_PER_BATCH // hypotheses if batch_size is None else batch_size)
            checkpoints = [located(Path(name)) for name in names(checkpoint)]
            return forks.worthwhile(file, checkpoints, device, threads, hypotheses=hypotheses, batch=batch)
        case _:
            return 1


def _call(command: str, config: "DictConfig", settings: Sequence[str]) -> Any:
    """Import the command's module and call its function."""
    from omegaconf.errors import OmegaConfBaseException

    module = importlib.import_module(f"seqtool.cli.{MODULES.get(command, command)}")
    if not gc.isenabled():  # `main` has disabled it
        gc.freeze()  # exempts imported objects from collection, since they stay until the process ends
        gc.enable()
    memory_settings = MEMORY_SETTINGS.get(command, DECODING_MEMORY_SETTINGS)
    try:
        with out_of_memory(lambda: f"in {command}: lower {memory_settings}."):
            return getattr(module, FUNCTIONS.get(command, command))(config)
    except OmegaConfBaseException as error:
        removals = " ".join(setting for setting in settings if setting.startswith("~"))
        if not removals:
            raise
        raise InputError(
            f"{command} needs a setting that {removals} removes: override it with key=value instead."
        ) from error


def _log_to_stderr() -> None:
    """Send log messages to standard error, since standard output is for results."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    for package in ("seqtool", "hydra"):
        logging.getLogger(package).setLevel(logging.INFO)


def _message(error: InputError | OSError) -> str:
    """The error's message as a sentence."""
    if isinstance(error, InputError) or error.strerror is None:
        return str(error)
    if error.filename is None:
        return f"{error.strerror}."
    if (disk_message := full_disk(error)) is not None:
        return f"{disk_message} and try again."
    second_name = "" if error.filename2 is None else f" or '{error.filename2}'"
    return f"'{error.filename}'{second_name} cannot be used: {error.strerror[0].lower()}{error.strerror[1:]}."
