"""The jobs of one command line with -m."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool.cli.arguments import OVERRIDE, ConfigFiles
from seqtool.cli.setting_errors import check_name, references
from seqtool.errors import InputError, printable
from seqtool.runtime.files import expanded
from seqtool.settings import declarations, escape, plain
from seqtool.training.runs import RUNS

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"  # runs the jobs in this process


class Sweep:
    """Runs jobs one after another: if one fails because of bad input, `say` reports it, and the others go on.

    Under any launcher but Hydra's basic one, each job has its own copy of this, which knows no other job, and errors
    are raised, so that the scheduler and Hydra see them.
    """

    def __init__(self, say: Callable[[InputError | OSError], None], command: str) -> None:
        self._say = say
        settings = declarations.of_command(command).items()
        self._outputs = [name for name, setting in settings if setting.writes and setting.is_path]
        self._jobs: list[tuple[str, ...]] = []  # the settings of each
        self._failed: list[int] = []
        self._names: set[str] = set()
        self._written: set[Path] = set()  # the files of finished jobs
        self.runs: dict[Path, int] = {}  # the directories of runs that were begun, and which job began each

    def run(self, config: DictConfig, job: Callable[[], bool]) -> None:
        """Run a job, which returns whether it finished: one that a signal stopped ends the sweep, like Ctrl-C."""
        overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)  # as written, ${…} too
        self._jobs.append(tuple(overrides))
        try:
            self._name_run(config)
            outputs = self._check_outputs(config)
            with self._noting(config):
                finished = job()
            self._written |= outputs
        except BrokenPipeError:
            raise
        except (InputError, OSError) as error:
            if _is_alone() or "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun ends the processes that wait for this one
                raise
            self._failed.append(len(self._jobs) - 1)
            self._say(error)
        else:
            if not finished:
                raise KeyboardInterrupt

    def status(self) -> int:
        """The exit status; for several jobs, also prints which failed."""
        if not self._failed:
            return 0
        if len(self._jobs) > 1:
            own = {number: self._own(number) for number in self._failed}
            which = "; ".join(f"job {number}{settings and f', {settings}'}" for number, settings in own.items())
            print(f"seqtool: {printable(f'{len(own)} of {len(self._jobs)} jobs failed: {which}.')}", file=sys.stderr)
        return 2

    def own_settings(self) -> dict[Path, str]:
        """The runs, each with the settings that it does not share with all jobs."""
        return {run: self._own(number) for run, number in self.runs.items()}

    def _own(self, number: int) -> str:
        shared = set(self._jobs[0]).intersection(*self._jobs)
        return " ".join(setting for setting in self._jobs[number] if setting not in shared)

    @contextmanager
    def _noting(self, config: DictConfig) -> Iterator[None]:
        """Note a job's run: the one of its name, or the new one."""
        before, name = set(RUNS.glob("*")), plain(config).get("run")
        try:
            yield
        finally:
            if "train" in config:  # other commands make no run
                now = set(RUNS.glob("*"))
                begun = sorted(now - before if name is None else now & {RUNS / str(name)})
                self.runs |= dict.fromkeys(begun, len(self._jobs) - 1)

    def _name_run(self, config: DictConfig) -> None:
        """Append the job's number to a name that is given and refers to no settings; to any other name only if another
        job has it or, under another launcher, may have it.
        """
        name = plain(config).get("run")  # ${seed} is a number
        check_name(config)
        if name is None:
            return
        name, number = str(name), f"-{HydraConfig.get().job.num}"
        is_one_for_all = any(re.match(r"\+{0,2}run=", setting) for setting in self._jobs[-1]) and not references(config)
        if is_one_for_all or name in self._names or (_is_alone() and not name.endswith(number)):
            name += number
            config.run = escape(name)
        self._names.add(name)

    def _check_outputs(self, config: DictConfig) -> set[Path]:
        """The files that the job writes. InputError if it would replace one that an earlier job has written."""
        settings, outputs = plain(config), set[Path]()
        for name, path in ((name, settings.get(name)) for name in self._outputs):
            if path is None or (Path(path).exists() and not Path(path).is_file()):  # a device or pipe is not replaced
                continue
            place = Path(expanded(path)).resolve()
            if place in self._written:
                raise InputError(
                    f"{name}={path} is what an earlier job of this sweep wrote: name a file for each job, such as "
                    f"{name}=out-${{beam}}.txt where beam is what differs."
                )
            outputs.add(place)
        return outputs


def added(settings: Sequence[str], files: ConfigFiles) -> list[str]:
    """The settings of a sweep, with ++ before those that only exist with the swept choices, and with each of these.

    Hydra composes the sweep itself with the default choice, and would refuse them.
    """
    matches = [match for setting in settings if (match := OVERRIDE.fullmatch(setting)) is not None]
    values = {match["key"]: match["value"] or "" for match in matches}
    result = list(settings)
    for group, default in files.groups.items():
        choices = [name.strip() for name in values.get(group, "").split(",")]
        having = [files.of_choice(group, choice) for choice in choices] if len(choices) > 1 else []
        names = set.intersection(*having) - files.of_choice(group, default) if having else set()
        result = [f"++{setting}" if setting.partition("=")[0] in names else setting for setting in result]
    return result


def _is_alone() -> bool:
    """Whether this job may be running in its own process."""
    return bool(HydraConfig.get().launcher["_target_"] != BASIC)
