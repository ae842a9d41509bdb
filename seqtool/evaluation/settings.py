"""The settings of `eval` besides those of decoding. `settings.declarations` says which name files; an `Evaluator` says
which it uses.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from seqtool.settings import declarations, names


@dataclass
class EvaluationSettings(declarations.EvalTranslations, declarations.EvalCaptions, declarations.EvalTexts):
    """configs/eval.yaml says what each is and holds the defaults."""

    def inputs(self) -> dict[str, list[str]]:
        """The files to read, by setting."""
        return {
            name: names(getattr(self, name)) for name, setting in self._declared() if setting.reads and not setting.text
        }

    def outputs(self) -> dict[str, str | None]:
        """The files and directories to write, by setting."""
        return {name: getattr(self, name) for name, setting in self._declared() if setting.writes}

    def origin(self) -> dict[str, str]:
        """The files and the test set that are scored, by setting."""
        read = {name: names(getattr(self, name)) for name, setting in self._declared() if setting.reads}
        return {name: ", ".join(files) for name, files in read.items() if files}

    def write_nothing(self) -> None:
        """Clear the settings of output files, in a process that only shares the work; all share that of a report."""
        for name in self.outputs().keys() - {"report"}:
            setattr(self, name, None)

    def problems(self) -> Iterator[str]:
        """What is wrong with the settings that every task has, and with values that no task can have."""
        yield from (f"{problem}." for problem in declarations.out_of_range(type(self), vars(self)))
        if self.bootstrap < 2 and self.bootstrap != 0:
            yield f"bootstrap must be at least 2, not {self.bootstrap}. 0 leaves intervals out."

    def _declared(self) -> Iterable[tuple[str, declarations.Setting]]:
        schema: Any = type(self)
        return declarations.declared(schema).items()
