"""Help and shell completion, read from the YAML files themselves, so that they say what is true."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from seqtool.errors import InputError

SUMMARIES = {
    "prepare": "tokenise and encode a corpus once, into a cache",
    "train": "train a model into runs/NAME",
    "translate": "translate lines of text, from a file or standard input",
    "caption": "describe images",
    "eval": "score a checkpoint on a test set, or hypotheses against references",
    "inspect": "say what a run, a checkpoint or a cache is",
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
seqtool train -m model=bahdanau,sutskever seed=1,2        # four runs""",
    "translate": """
seqtool translate checkpoint=runs/first < input.txt > output.txt
seqtool translate checkpoint=runs/first input=input.txt output=output.txt
seqtool translate checkpoint=runs/first,runs/second format=jsonl < input.txt      # an ensemble""",
    "caption": """
seqtool caption checkpoint=runs/captions images=photo.jpg
seqtool caption checkpoint=runs/captions images=holiday/ plot=attention     # a folder, and where each word looked
seqtool caption checkpoint=runs/captions images=list.txt format=coco output=results.json""",
    "eval": """
seqtool eval checkpoint=runs/first split=test
seqtool eval hypotheses=output.txt references=first.txt,second.txt
seqtool eval checkpoint=runs/first split=test format=json
seqtool eval task=captioning hypotheses=results.json references=annotations.json""",
    "inspect": """
seqtool inspect runs/first
seqtool inspect runs/first/last""",
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

INSTALL = """Load it with:
  bash   eval "$(seqtool --completion bash)"      in ~/.bashrc
  zsh    eval "$(seqtool --completion zsh)"       in ~/.zshrc, after compinit
  fish   seqtool --completion fish | source       in ~/.config/fish/config.fish"""


def overview() -> str:
    """The text of `seqtool --help`."""
    commands = "\n".join(f"  {name:<11}{summary}" for name, summary in SUMMARIES.items())
    first = "\n".join(
        "  " + EXAMPLES[name].strip().splitlines()[0].split("  #")[0].rstrip()
        for name in ("train", "translate", "eval")
    )
    return f"""seqtool: recurrent translation and captioning models, as the papers print them

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
    """The text of `seqtool COMMAND --help`; `model=… --help` shows the settings of that model."""
    examples = "\n".join(f"  {line}" for line in EXAMPLES[name].strip().splitlines())
    if name == "inspect":
        return f"seqtool inspect: {SUMMARIES[name]}\n\nUsage: seqtool inspect PATH\n\nExamples\n{examples}"
    files, groups = _parts(name, configs, arguments)
    sections = [f"seqtool {name}: {SUMMARIES[name]}", f"Usage: seqtool {name} [key=value …]"]
    sections += [f"Examples\n{examples}", "Settings and their defaults"]
    sections += filter(None, (_body(file) for file in files))
    for group, choice in groups.items():
        file = configs / group / f"{choice}.yaml"
        heading = f"  {group}={choice or '…'}  # choose from {', '.join(_choices(configs, group))}"
        bodies = [_body(one, "    ") for one in _included(file, configs)]
        sections.append("\n".join([heading, *filter(None, bodies)]))
    sections.append(f"`seqtool {name} --cfg job [key=value …]` prints what they come to.")
    return "\n\n".join(sections)


def completion(shell: str) -> str:
    """The script that makes `shell` complete seqtool's commands, settings and choices."""
    if shell not in SCRIPTS:
        raise InputError(f"seqtool --completion needs one of {', '.join(SCRIPTS)}.")
    return SCRIPTS[shell]


def complete(line: str, configs: Path) -> list[str]:
    """What the last word of a command line may become; a value that is no choice grows into a file's name."""
    *before, word = line.split(" ")[1:] or [""]
    if not before:
        return [f"{name} " for name in SUMMARIES if name.startswith(word)]
    if before[0] not in SUMMARIES:
        return []
    if before[0] == "inspect":
        return _files(word)
    files, groups = _parts(before[0], configs, before)
    key, equals, value = word.partition("=")
    if equals and key in groups:
        return [f"{key}={choice} " for choice in _choices(configs, key) if choice.startswith(value)]
    if equals:
        return [f"{key}={name}" for name in _files(value)]
    known = {*groups, *(name for file in files for name in _keys(_load(file)))}
    for group, choice in groups.items():
        file = configs / group / f"{choice}.yaml"
        if file.exists() and "@package _global_" not in file.read_text("utf-8"):
            known |= {key for one in _included(file, configs) for key in _keys(_load(one), f"{group}.")}
    return sorted(f"{name}=" for name in known if name.startswith(word) and not name.endswith("_target_"))


def _parts(name: str, configs: Path, arguments: Sequence[str]) -> tuple[list[Path], dict[str, str | None]]:
    """The YAML files that a command's settings are written in, and its groups with the choice of each."""
    file = configs / f"{name}.yaml"
    files: list[Path] = []
    groups: dict[str, str | None] = {}
    for entry in _load(file).get("defaults", []):
        if isinstance(entry, Mapping):
            groups |= entry
        elif entry != "_self_":
            inherited, more = _parts(entry, configs, arguments)
            files += inherited
            groups |= more
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    return [file, *files], {group: given.get(group, choice) for group, choice in groups.items()}


def _included(file: Path, configs: Path) -> list[Path]:
    """A choice's file, where there is one, and those that it takes in with `/NAME@_here_`."""
    if not file.exists():
        return []
    entries = [entry for entry in _load(file).get("defaults", []) if isinstance(entry, str)]
    names = [entry.removesuffix("@_here_").lstrip("/") for entry in entries if entry.endswith("@_here_")]
    return [file, *(configs / f"{name}.yaml" for name in names)]


def _choices(configs: Path, group: str) -> list[str]:
    return sorted(file.stem for file in (configs / group).glob("*.yaml"))


def _load(file: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf  # 0.06 s, which `seqtool --help` does without

    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(file)))


def _keys(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if key == "defaults":
            continue
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _files(start: str) -> list[str]:
    folder, beginning = os.path.split(start)
    place = Path(folder or ".")
    found = sorted(path for path in place.glob("*") if path.name.startswith(beginning))
    prefix = start[: len(start) - len(beginning)]
    return [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in found]


def _body(file: Path, indent: str = "  ") -> str:
    """The settings of a YAML file with their comments, indented, without what only Hydra reads."""
    text = re.sub(r"^# @package.*\n", "", file.read_text("utf-8"))
    text = re.sub(r"^defaults:.*\n(?:[ \t-].*\n|\n)*", "", text, flags=re.MULTILINE)
    return "\n".join(f"{indent}{line}".rstrip() for line in text.strip("\n").splitlines())
