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
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from seqtool.cli import help as help_texts
from seqtool.errors import InputError, full_disk, naming, out_of_memory, printable
from seqtool.runtime.files import config_directory, expanded
from seqtool.runtime.spinning import limit_spinning
from seqtool.runtime.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

COMMANDS = tuple(help_texts.SUMMARIES)
FUNCTIONS = {"eval": "evaluate"}  # those not named like their command
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
    ending = [one for one in ENDING if signal.getsignal(one) != signal.SIG_IGN]  # as SIGHUP is under nohup
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
        from seqtool.runtime.failures import is_said  # imports torch

        if is_said(error, sentence):  # by another of the processes that torchrun started
            return
    print(f"seqtool: {sentence}", file=sys.stderr)


def _dispatch(arguments: list[str], configs: Path) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        print(help_texts.command(rest[0], configs, rest[1:]) if rest and rest[0] in COMMANDS else help_texts.overview())
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
    elif command == "report":
        return _report(rest, configs)
    elif command == "inspect":
        plots = [
            expanded(one.removeprefix("plot=")) for one in rest if one.startswith("plot=") and not os.path.lexists(one)
        ]
        others = [one for one in rest if os.path.lexists(one) or not one.startswith("plot=")]
        paths = [one if os.path.lexists(one) else expanded(one.removeprefix("checkpoint=")) for one in others]
        if not all(paths) or not all(plots) or len(plots) > 1 or (len(paths) != 1 and not plots) or not paths:
            raise InputError(
                "inspect needs one path: seqtool inspect PATH, or runs: seqtool inspect RUN … plot=FOLDER."
            )
        if plots:
            from seqtool.cli.inspect import draw

            draw(paths, Path(plots[0]))
        else:
            from seqtool.cli.inspect import inspect

            inspect(paths[0])
    else:
        return _compose_and_call(command, rest, configs)
    return 0


def _report(arguments: Sequence[str], configs: Path) -> int:
    """The report of runs, or with settings that of an evaluation: `eval … report=FILE`; gives the exit status."""
    runs = [one for one in arguments if os.path.lexists(one) or "=" not in one]
    settings = [one for one in arguments if one not in runs]
    outputs = [one.removeprefix("output=") for one in settings if one.startswith("output=")]
    others = [one for one in settings if not one.startswith("output=")]
    if runs and others:
        raise InputError(
            f"The report of a run takes only output=FILE.html, not {others[0]}; that of an evaluation takes its "
            "checkpoint by name: seqtool report checkpoint=PATH split=test output=FILE.html."
        )
    if not (runs or others) or len(outputs) > 1 or not all(outputs):
        raise InputError(
            "report needs runs: seqtool report RUN … [output=FILE.html], or what to evaluate: "
            "seqtool report checkpoint=PATH split=test output=FILE.html."
        )
    if others:
        if not outputs:
            raise InputError("The report of an evaluation needs a place: output=FILE.html.")
        return _compose_and_call("eval", [*others, f"report={outputs[0]}"], configs)
    from seqtool.cli.report import of_runs

    of_runs([expanded(run) for run in runs], expanded(outputs[0]) if outputs else None)
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
    from seqtool.cli import own_files
    from seqtool.cli.setting_errors import compose

    options, given = ours.split(arguments)
    places = ours.folders(arguments, configs)
    own_files.check(given, places, command)
    settings = [ours.quoted(setting, ours.referable(command, places)) for setting in given]
    stored = tuple(f"{group}." for group in ours.stored_groups(command, settings))
    settings = [f"++{setting}" if setting.startswith(stored) else setting for setting in settings]
    _log_to_stderr()
    is_plain = all(option == "--run" or option.startswith("--config-dir=") for option in options)
    if not is_plain or any(setting.lstrip("+~").startswith("hydra") for setting in settings):
        return _call_by_hydra(command, options, settings, places)
    config = compose(command, settings, places, sweep=False)  # once, where `hydra.main` would compose twice
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)  # keeps a copy of what is deleted here
    with read_write(config), open_dict(config):
        del config["hydra"]
    try:
        if not _call(command, config, places, settings) and "TORCHELASTIC_RUN_ID" not in os.environ:
            return INTERRUPTED  # so that a script does not go on; torchrun would start it again
    finally:
        HydraConfig.instance().cfg = before
    return 0


def _call_by_hydra(command: str, options: Sequence[str], settings: Sequence[str], places: Sequence[Path]) -> int:
    """Have Hydra itself run several jobs, start them with a launcher, or show the configuration."""
    import hydra

    from seqtool.cli.arguments import quote
    from seqtool.cli.setting_errors import explained
    from seqtool.cli.sweeps import Sweep, added

    sweep = Sweep(_say) if "--multirun" in options else None

    def job(config: "DictConfig") -> None:
        limit_spinning()  # again, as Hydra's launchers may start other processes
        _log_to_stderr()
        try:
            if sweep is None:
                finished = _call(command, config, places, settings)
                if not finished and "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun would start it again
                    raise KeyboardInterrupt  # so that a script does not go on
            else:
                sweep.run(config, lambda: _call(command, config, places, settings))
        except Exception as error:
            raise _Carried(error) from error

    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors are raised instead of printed
    arguments_before = sys.argv
    with ExitStack() as stack:
        overrides = [*HYDRA, *settings]
        if sweep is not None:
            overrides = [*HYDRA, "hydra.sweep.subdir=."]
            if not any(setting.startswith(("hydra/launcher", "hydra.launcher")) for setting in settings):
                # Other launchers pass jobs to other machines in Hydra's own directory, multirun/DATE/TIME.
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="seqtool-"))  # for multirun.yaml
                overrides.append(f"hydra.sweep.dir={quote(scratch)}")
            overrides += added(settings, command, places)
        sys.argv = [f"seqtool {command}", *options, *overrides]
        try:
            with naming("multirun.yaml"):  # of Hydra's own files; errors of a job are carried past this
                hydra.main(version_base="1.3", config_path=str(places[0]), config_name=command)(job)()
        except _Carried as carried:
            raise carried.error from None
        except Exception as error:
            reason = explained(error, settings, places, command, sweep=sweep is not None)
            if reason is None:
                raise
            raise InputError(reason) from error
        finally:
            sys.argv = arguments_before
    if sweep is not None and len(sweep.runs) > 1 and os.environ.get("RANK", "0") == "0":
        from seqtool.cli.inspect import compare  # imports torch, which the runs have imported already

        compare(sweep.own_settings())
    return 0 if sweep is None else sweep.status()


def _call(command: str, config: "DictConfig", configs: Sequence[Path], settings: Sequence[str]) -> bool:
    """Call the command's function; False if it was stopped early."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from seqtool.cli.arguments import read_names, stored_groups
    from seqtool.cli.setting_errors import check, check_name
    from seqtool.settings import plain

    read_names(config)
    values = plain(config)
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        needed = " and ".join(f"{key}=…" for key in missing)
        raise InputError(f"{command} needs {needed} (see seqtool {command} --help).")
    check_name(config)
    stored = "data" in stored_groups(command, settings, values.get("run"))
    check(values, None if stored else HydraConfig.get().runtime.choices.get("data"), configs, command)
    function = FUNCTIONS.get(command, command)
    module = importlib.import_module(f"seqtool.cli.{function}")
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
