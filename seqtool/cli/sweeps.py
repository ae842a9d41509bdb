"""Runs the jobs of a sweep, a command line with -m."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool.cli.arguments import OVERRIDE, ConfigFiles, check_name, references
from seqtool.errors import InputError, printable
from seqtool.runtime.files import expanded
from seqtool.settings import declarations, escape, plain
from seqtool.training.runs import RUNS

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"  # runs the jobs in this process


class Sweep:
    """Runs jobs one after another. If bad input makes a job fail, `report_error` reports it and the other jobs run.

    Under launchers other than Hydra's basic one, each job has its own `Sweep`, which knows nothing of the other jobs,
    and errors are raised, so that the scheduler and Hydra see them.
    """

    def __init__(self, report_error: Callable[[InputError | OSError], None], command: str) -> None:
        self._report_error = report_error
        settings = declarations.command_settings(command).items()
        self._output_settings = [name for name, setting in settings if setting.writes and not setting.text]
        self._jobs: list[tuple[str, ...]] = []  # each job's overrides
        self._failed_jobs: list[int] = []  # the numbers of the jobs that failed
        self._run_names: set[str] = set()
        self._written_files: set[Path] = set()  # the files that finished jobs have written
        self.runs: dict[Path, int] = {}  # the directory of each run that was started, and the number of its job

    def run(self, config: DictConfig, job: Callable[[], Any]) -> None:
        """Call `job`, which returns the directory of its run if it trains, and False if a signal stopped it: then the
        sweep ends, as after Ctrl-C.
        """
        overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)  # as written, with ${…}
        self._jobs.append(tuple(overrides))
        try:
            self._name_run(config)
            values, outputs = plain(config), set[Path]()  # the files that the job writes
            for setting in self._output_settings:
                path = None if values.get(setting) is None else str(values[setting])  # a number if it is ${beam}
                # several jobs may write to the same device or pipe
                if path is None or (Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir())):
                    continue
                file = Path(expanded(path)).resolve()
                if file in self._written_files:
                    kind, ending = ("directory", "") if file.is_dir() else ("file", ".txt")
                    raise InputError(
                        f"{setting}={path} was written by an earlier job of this sweep: name a different {kind} for "
                        f"each job, such as {setting}=out-${{beam}}{ending} if the jobs differ in beam."
                    )
                outputs.add(file)
            result, name = None, values.get("run")
            is_older = (RUNS / str(name)).exists() and not (values.get("train") or {}).get("resume")
            try:
                result = job()
            finally:
                if "train" in config:  # other commands make no run
                    # of a run that failed, only a name in the settings is known, which may be that of an older run
                    run = RUNS / str(name) if result is None and name is not None and not is_older else result
                    if isinstance(run, Path) and run.exists():
                        self.runs[run] = len(self._jobs) - 1
            self._written_files |= outputs
        except BrokenPipeError:
            raise
        except (InputError, OSError) as error:
            if _may_be_separate() or "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun then ends the waiting processes
                raise
            self._failed_jobs.append(len(self._jobs) - 1)
            self._report_error(error)
        else:
            if result is False:
                raise KeyboardInterrupt

    def status(self) -> int:
        """The exit status. If there were several jobs, also print which of them failed."""
        if not self._failed_jobs:
            return 0
        if len(self._jobs) > 1:
            distinct = {number: self.distinct_overrides(number) for number in self._failed_jobs}
            jobs = "; ".join(f"job {number}, {text}" if text else f"job {number}" for number, text in distinct.items())
            message = f"{len(self._failed_jobs)} of {len(self._jobs)} jobs failed: {jobs}."
            print(f"seqtool: {printable(message)}", file=sys.stderr)
        return 2

    def distinct_overrides(self, number: int) -> str:
        """The overrides of a job, without those that all jobs share."""
        shared_overrides = set(self._jobs[0]).intersection(*self._jobs)
        return " ".join(setting for setting in self._jobs[number] if setting not in shared_overrides)

    def _name_run(self, config: DictConfig) -> None:
        """Append the job's number to the name of its run if another job has, or may have, the same name.

        All jobs have the same name if it is set on the command line and refers to no settings.
        """
        name = plain(config).get("run")  # a number if it is ${seed}
        check_name(config)
        if name is None:
            return
        name, suffix = str(name), f"-{HydraConfig.get().job.num}"
        is_shared = any(re.match(r"\+{0,2}run=", setting) for setting in self._jobs[-1]) and not references(config)
        if is_shared or name in self._run_names or (_may_be_separate() and not name.endswith(suffix)):
            name += suffix
            config.run = escape(name)
        self._run_names.add(name)


def force_swept_settings(settings: Sequence[str], files: ConfigFiles) -> list[str]:
    """Write ++ before the settings of a sweep that all swept choices of a group have but its default choice lacks.

    Hydra would refuse these settings, since it composes the sweep itself with the default choice.
    """
    values = {match["key"]: match["value"] or "" for match in filter(None, map(OVERRIDE.fullmatch, settings))}
    result = list(settings)
    for group, default in files.groups.items():
        choices = [name.strip() for name in values.get(group, "").split(",")]
        if len(choices) > 1:
            common = set.intersection(*(files.choice_settings(group, choice) for choice in choices))
            names = common - files.choice_settings(group, default)
            result = [f"++{setting}" if setting.partition("=")[0] in names else setting for setting in result]
    return result


def _may_be_separate() -> bool:
    """Whether each job may run in a process of its own."""
    return bool(HydraConfig.get().launcher["_target_"] != BASIC_LAUNCHER)
