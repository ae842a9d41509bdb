"""Help and shell completion, read from the YAML files themselves, so that they are always up to date."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqtool.cli import config_files
from seqtool.errors import InputError
from seqtool.runtime.files import expanded

LINE = re.compile(r"(?P<start>(?P<indent> *)(?P<key>\w+):) *(?P<value>[^\s#].*?)?(?P<comment> +#.*)?")

SUMMARIES = {
    "prepare": "tokenise and encode a corpus once, into a cache",
    "train": "train a model into runs/NAME",
    "translate": "translate lines of text, from a file or standard input",
    "caption": "describe images",
    "generate": "write text with a language model",
    "score": "give the log-probability of translations or texts under a model",
    "eval": "score a checkpoint on a test set, or hypotheses against references",
    "inspect": "say what a run, a checkpoint or a cache is, or compare a directory of runs",
    "report": "write a run or an evaluation as one HTML file to look at",
    "demo": "start a local web demo, where you can watch a model work",
}

EXAMPLES = {
    "prepare": """
seqtool prepare                                           # the built-in English–Spanish corpus
seqtool prepare data=multi30k data.download=true
seqtool prepare data=parallel data.train=[a.en,a.de] data.valid=[b.en,b.de] data.vocabulary.size=8000
seqtool prepare experiment=flickr8k_soft data.directory=PATH    # captions, and images as annotation vectors""",
    "train": """
seqtool train                                             # bahdanau on the built-in corpus
seqtool train model=sutskever run=first                   # into runs/first
seqtool train experiment=multi30k_bahdanau seed=2
seqtool train experiment=scenes_soft                      # Show, Attend and Tell on the built-in pictures
seqtool train model=language_model data=text data.train=text.txt   # reads a text character by character
seqtool train -m model=bahdanau,sutskever seed=1,2        # four runs""",
    "translate": """
seqtool translate checkpoint=runs/first < input.txt > output.txt
seqtool translate checkpoint=runs/first input=input.txt output=output.txt
seqtool translate checkpoint=runs/first,runs/second format=jsonl < input.txt      # an ensemble""",
    "caption": """
seqtool caption checkpoint=runs/captions images=photo.jpg
seqtool caption checkpoint=runs/captions images=holiday/ plot=attention     # a folder, and where each word looked
seqtool caption checkpoint=runs/captions images=list.txt format=coco output=results.json""",
    "generate": """
seqtool generate checkpoint=runs/text prompt="Once upon a time"
seqtool generate checkpoint=runs/text n=3 temperature=0.7 max_length=1000 stop=[".","?"]
seqtool generate checkpoint=runs/text input=prompts.txt output=texts.jsonl format=jsonl""",
    "score": """
seqtool score checkpoint=runs/first sources=input.txt references=output.txt
seqtool score checkpoint=runs/first sources=input.txt references=output.txt format=jsonl plot=alignments
seqtool score checkpoint=runs/text references=texts.txt   # of a language model""",
    "eval": """
seqtool eval checkpoint=runs/first split=test
seqtool eval hypotheses=output.txt references=first.txt,second.txt
seqtool eval checkpoint=runs/first split=test format=json
seqtool eval task=captioning hypotheses=results.json references=annotations.json""",
    "inspect": """
seqtool inspect runs/first
seqtool inspect runs/first/last
seqtool inspect runs                                      # a table of them all
seqtool inspect runs/first runs/second plot=figures       # their curves in one figure; runs plot=figures: of all""",
    "demo": """
seqtool demo checkpoint=runs/first
seqtool demo checkpoint=runs/first,runs/second            # two models side by side
seqtool demo checkpoint=runs/scenes port=9000""",
    "report": """
seqtool report runs/first                                 # writes runs/first/report.html
seqtool report runs/first runs/second output=both.html    # two runs beside each other
seqtool report checkpoint=runs/first split=test output=test.html    # every sentence; eval … report=test.html
seqtool report hypotheses=a.de baseline=b.de references=test.de sources=test.en output=systems.html""",
}
USAGES = {  # of commands without settings of their own
    "inspect": "seqtool inspect PATH, or seqtool inspect RUN … plot=FOLDER",
    "report": "seqtool report RUN … [output=FILE.html], or seqtool report [settings of eval] output=FILE.html",
}

SCRIPTS = {
    "bash": """_seqtool() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n' word
    word="${line##* }"
    COMPREPLY=($(seqtool --complete "$line" 2> /dev/null))
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
}
complete -o nospace -F _seqtool seqtool""",
    "zsh": """_seqtool() {
    local -a found=("${(@f)$(seqtool --complete "${(j: :)words[1,CURRENT]}" 2> /dev/null)}")
    compadd -S '' -- $found
}
compdef _seqtool seqtool""",
    "fish": "complete -c seqtool -f -a '(seqtool --complete (commandline -cp) 2> /dev/null)'",
}


def overview() -> str:
    """The text of `seqtool --help`."""
    commands = "\n".join(f"  {name:<11}{summary}" for name, summary in SUMMARIES.items())
    first = "\n".join(
        "  " + EXAMPLES[name].strip().splitlines()[0].split("  #")[0].rstrip()
        for name in ("train", "translate", "eval")
    )
    return f"""seqtool: translation, captioning and language models, as the papers print them

Usage: seqtool COMMAND [key=value …]

Commands
{commands}

Examples
{first}

More
  seqtool COMMAND --help              examples and all settings of a command
  seqtool COMMAND --cfg job […]       the configuration that would be used
  seqtool --completion bash|zsh|fish  shell completion
  seqtool --version"""


def command(name: str, configs: Path, arguments: Sequence[str]) -> str:
    """The text of `seqtool COMMAND --help`; with settings after it, it shows their effect on the others."""
    examples = "\n".join(f"  {line}" for line in EXAMPLES[name].strip().splitlines())
    if name in USAGES:
        return f"seqtool {name}: {SUMMARIES[name]}\n\nUsage: {USAGES[name]}\n\nExamples\n{examples}"
    from seqtool.cli.arguments import folders  # imports OmegaConf and Hydra, not needed for `seqtool --help`
    from seqtool.cli.setting_errors import composed

    given = [one for one in arguments if re.match(r"[^-].*=|~", one, re.DOTALL)]
    places = folders(arguments, configs)
    files, groups = config_files.parts(name, places)
    values, chosen = composed(name, given, places)
    shown: set[str] = set()
    sections = [f"seqtool {name}: {SUMMARIES[name]}", f"Usage: seqtool {name} [key=value …]"]
    sections += [f"Examples\n{examples}", "Settings and their defaults"]
    sections += [_body(file, "", values, shown, once=True) for file in files]
    for group in groups:
        choice = chosen.get(group)
        heading = f"  {group}={choice or '…'}  # choose from {', '.join(config_files.choices(places, group))}"
        included = config_files.included(group, choice, places)
        start = "" if included and config_files.is_preset(included[0][0]) else f"{group}."
        lines = [heading]
        for file, place in included:
            body = _body(file, f"{start}{place}", values, shown, "      " if place else "    ")
            lines += filter(None, [place and f"    {place[:-1]}:", body])
        sections.append("\n".join(lines))
    others = [f"  {key}: {_written(value)}" for key, value in _leaves(values) if key not in shown]
    sections += ["\n".join(others), f"`seqtool {name} --cfg job [key=value …]` prints what they come to."]
    return "\n\n".join(filter(None, sections))


def completion(shell: str) -> str:
    """The script that makes `shell` complete seqtool's commands, settings and choices."""
    if shell not in SCRIPTS:
        raise InputError(f"seqtool --completion needs one of {', '.join(SCRIPTS)}.")
    return SCRIPTS[shell]


def complete(line: str, configs: Path) -> list[str]:
    """The completions of a command line's last word; a value that is not a choice is completed as a file name."""
    *before, word = line.split(" ")[1:] or [""]
    if not before:
        return [f"{name} " for name in SUMMARIES if name.startswith(word)]
    if before[0] not in SUMMARIES:
        return []
    key, equals, value = word.partition("=")
    if before[0] in USAGES:
        return [f"{key}={name}" for name in _files(value)] if key == "checkpoint" and equals else _files(word)
    if before[-1] in ("--config-dir", "-cd"):
        return _files(word)
    from seqtool.cli.arguments import folders

    places = folders(before, configs)
    groups = config_files.parts(before[0], places)[1]
    if equals and key in groups:
        return [f"{key}={choice} " for choice in config_files.choices(places, key) if choice.startswith(value)]
    if equals:
        return [f"{key}={name}" for name in _files(value)]
    given = dict(argument.split("=", 1) for argument in before if "=" in argument)
    known = config_files.outside_groups(before[0], places)
    for group, choice in groups.items():
        known |= config_files.of_choice(group, given.get(group, choice), places)
    branches = {name.rpartition(".")[0] for name in known}
    names = {name for name in known - branches if not name.endswith("_target_")} | groups.keys()
    return sorted(f"{name}=" for name in names if name.startswith(word))


def _files(start: str) -> list[str]:
    folder, beginning = os.path.split(start)
    place = Path(expanded(folder) or ".")
    found = sorted(path for path in place.glob("*") if path.name.startswith(beginning))
    prefix = start[: len(start) - len(beginning)]
    return [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in found]


def _body(
    file: Path, start: str, values: Mapping[str, Any], shown: set[str], indent: str = "  ", *, once: bool = False
) -> str:
    """The settings of a YAML file with their comments, indented, with their resulting values.

    Lines only for Hydra are left out. `start` begins the full names of the file's settings, which are added to
    `shown`, and with `once` left out if they are there; `values` are those of the whole configuration.
    """
    text = re.sub(r"^# @package.*\n", "", file.read_text("utf-8-sig"))
    text = re.sub(r"^defaults:.*\n(?:[ \t-].*\n|\n)*", "", text, flags=re.MULTILINE)
    outer: list[tuple[int, str]] = []  # the groups that a line is in, with their indentation
    lines, defaults = [], config_files.load(file)
    for line in text.strip("\n").splitlines():
        if (match := LINE.fullmatch(line)) is not None:
            while outer and outer[-1][0] >= len(match["indent"]):
                outer.pop()
            outer.append((len(match["indent"]), match["key"]))
            name = ".".join(key for _, key in outer)
            own = _find(defaults, name)
            if once and start + name in shown:
                continue
            found = _like(own, _find(values, start + name))
            if match["value"]:
                shown |= {f"{start}{key}" for key, _ in _leaves({name: own})}
                if found != own or type(found) is not type(own):
                    line = f"{match['start']} {_written(found)}{match['comment'] or ''}"
        lines.append(f"{indent}{line}".rstrip())
    return "\n".join(lines)


def _find(values: Any, name: str) -> Any:
    """The value of a setting; None if there is none."""
    for key in name.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _like(own: Any, value: Any) -> Any:
    """The value; of a group, only the settings that `own` has."""
    if not isinstance(own, Mapping) or not isinstance(value, Mapping):
        return value
    return {key: _like(inner, value[key]) for key, inner in own.items() if key in value}


def _written(value: Any) -> str:
    """A value as YAML, on one line."""
    import yaml

    form = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False, "width": float("inf")}
    text: str = yaml.safe_dump(value, **form)  # type: ignore[no-untyped-call]
    return text.removesuffix("...\n").rstrip("\n")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
