"""Declares every setting: its type, its range and where it applies. Defaults and help are in configs/.

Each dataclass below declares the settings of a group, such as `train`, `model.encoder` or a command's own; COMMANDS
lists the groups of each command. `Annotated[type, Setting(…)]` adds the other properties of a setting. Everything that
depends on a setting's properties looks them up here:

- types and ranges,
- quoting and ~ on the command line, and completion,
- files that are read, which no output may overwrite, and files that the jobs of a sweep write,
- what a resumed run may change,
- which tasks a setting is for.

The dataclasses that the code uses derive from the ones below, and add further checks. The settings of models, corpora,
optimisers and schedules are the arguments of their classes; arguments of your own classes are annotated like the fields
below, such as `pages: Files`. `Vocabulary` and `Limits` have defaults for the settings that the YAML files of some
kinds of data leave out. The names of settings in other toolkits are in other_names.yaml.

This module imports neither torch nor Hydra. tests/test_declarations.py compares it with the YAML files.
"""

import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml

from seqtool.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The properties of a setting besides its name, type, default and help."""

    reads: bool = False  # whether it names a file or directory that is read; with `text`, another input (a test set)
    writes: bool = False  # whether it names a file or directory that is written; with `text`, another output (a run)
    several: bool = False  # whether it may hold several values, `a,b,c`
    text: bool = False  # whether it may hold any text, which is taken literally
    classes: bool = False  # whether it holds names of Python modules or classes
    positional: bool = False  # whether arguments without `key=` are its values
    at_least: float | None = None  # the lowest value of a number
    at_most: float | None = None  # the highest
    above: float | None = None  # a limit that a number must exceed
    below: float | None = None  # a limit below which it must stay
    unit: str = ""  # the unit of the limits, which follows them in messages
    choices: tuple[str, ...] = ()  # the values that it may have; empty if they are not limited to a list
    fixed: bool | None = None  # whether a resumed run must keep its value; None: the group that contains it decides
    streams: bool | None = None  # True: only models that read streams of text use it; False: only others; None: all
    method: str = ""  # `search` or `sampling` if only that way of decoding uses it
    attention: bool = False  # whether it needs a model with attention over a source
    checkpoint: bool = False  # whether `eval` uses it only with a checkpoint
    scored: bool = True  # whether it can change scores, if it is a setting of decoding

    @property
    def is_literal(self) -> bool:
        """Whether its value is a name or text, which Hydra's grammar must not interpret."""
        return self.reads or self.writes or self.text or self.classes or self.several

    def problem(self, name: str, value: Any) -> str | None:
        """A clause that says why the setting `name` cannot have this value; None if the value is valid or null."""
        if value is None or value in self.choices:
            return None
        if self.choices:
            return f"Unknown {name} '{value}'; choose from {', '.join(self.choices)}"
        # `not value >= limit` rather than `value < limit`, so that NaN breaks the limit
        is_too_large = self.at_most is not None and value > self.at_most
        if self.above is not None and (is_too_large or not value > self.above):
            limit = f"above {self.above:,}" + ("" if self.at_most is None else f" and at most {self.at_most:,}")
        elif is_too_large:
            limit = f"at most {self.at_most:,}"
        elif self.at_least is not None and not value >= self.at_least:
            limit = f"at least {self.at_least:,}"
        elif self.below is not None and value >= self.below:
            limit = f"below {self.below:,}"
        else:
            return None
        return f"{name} must be {f'{limit} {self.unit}'.rstrip()}, not {value:,}"


NONE = Setting()


def between(at_least: float, at_most: float, unit: str = "") -> Setting:
    """The setting is a number in this closed interval."""
    return Setting(at_least=at_least, at_most=at_most, unit=unit)


def at_least(limit: float) -> Setting:
    """The setting is a number that is not below the limit."""
    return Setting(at_least=limit)


def choice(*choices: str) -> Setting:
    """The setting is one of the choices."""
    return Setting(choices=choices)


READS, WRITES, SEVERAL, TEXT = Setting(reads=True), Setting(writes=True), Setting(several=True), Setting(text=True)
POSITIONAL, ABOVE_0 = Setting(positional=True), Setting(above=0)
FIXED, CHANGEABLE = Setting(fixed=True), Setting(fixed=False)
SENTENCES, STREAMS = Setting(streams=False), Setting(streams=True)
SEARCH, SAMPLING = Setting(method="search"), Setting(method="sampling")
ATTENTION = Setting(attention=True)

File = Annotated[str, READS]
Files = Annotated[Any, READS, SEVERAL]  # null, one name or several; see `settings.names`
NewFile = Annotated[str, WRITES]
Text = Annotated[str, TEXT]
Classes = Annotated[Any, Setting(classes=True, several=True)]

Threads = Annotated[int | None, between(1, 1024)]
Probability = Annotated[float, Setting(above=0, at_most=1)]
Length = Annotated[int, between(1, 10_000)]
Words = choice("spaces", "marks", "characters")
Figures = choice("png", "svg", "pdf")
TEACHERS = ("linear", "exponential", "inverse_sigmoid")  # how often a decoder reads the reference's words
METHOD = choice("gradient", "integrated", "occlusion", "attention")  # of attribution


@dataclass
class Groups:
    """The groups of `train` whose choices name a class. `FIXED` marks those that a resumed run must keep."""

    model: Annotated[Any, FIXED]
    data: Annotated[Any, FIXED]
    optim: Any
    schedule: Any


@dataclass
class Run:
    """The settings at the top of configs/train.yaml."""

    run: Annotated[str | None, WRITES, TEXT]
    init_from: Annotated[str | None, READS, FIXED]
    initialisation: Annotated[str, FIXED]
    seed: Annotated[int, at_least(0), FIXED]
    device: str
    threads: Threads
    precision: Annotated[str, FIXED]
    compile: bool
    trust: Classes
    initialisation_gain: Annotated[float, FIXED]
    forget_bias: Annotated[float | None, FIXED]


@dataclass
class Embeddings:
    source: Annotated[str | None, READS, FIXED]
    target: Annotated[str | None, READS, FIXED]


@dataclass
class Train:
    batch_size: Annotated[int, ABOVE_0, FIXED]
    batch_by: Annotated[str, choice("sentences", "tokens"), FIXED, SENTENCES]
    pool: Annotated[int, ABOVE_0, FIXED, SENTENCES]
    bptt: Annotated[int, ABOVE_0, FIXED, STREAMS]
    accumulate: Annotated[int, ABOVE_0, FIXED]
    normalise: Annotated[str, choice("tokens", "sentences"), FIXED]
    clip_norm: Annotated[float | None, ABOVE_0]
    label_smoothing: Annotated[float, Setting(at_least=0, below=1)]
    epochs: Annotated[int | None, at_least(0)]
    steps: Annotated[int | None, at_least(0)]
    minutes: Annotated[float | None, at_least(0)]
    validate_every: Annotated[int | None, ABOVE_0]
    save_minutes: Annotated[float | None, ABOVE_0]
    patience: Annotated[int | None, ABOVE_0]
    best_by: str | None
    keep_last: Annotated[int, ABOVE_0]
    average_last: Annotated[int, at_least(0)]
    log_every: Annotated[int, ABOVE_0]
    resume: Annotated[bool | str, choice("true", "false", "auto")]
    gradient_flow: bool
    tensorboard: bool
    show: Annotated[int, between(0, 1000)]
    fewer_streams: Annotated[bool, FIXED, STREAMS]
    by_image: Annotated[bool, FIXED, SENTENCES]
    objective: Annotated[str, choice("cross_entropy", "sequence"), FIXED, SENTENCES]
    reward: Annotated[str | None, TEXT, FIXED, SENTENCES]
    reward_end: Annotated[bool, FIXED, SENTENCES]
    samples: Annotated[int, between(1, 1000), FIXED, SENTENCES]
    baseline: Annotated[str, choice("leave_one_out", "greedy", "risk"), FIXED, SENTENCES]
    risk_alpha: Annotated[float, ABOVE_0, FIXED, SENTENCES]
    risk_reference: Annotated[bool, FIXED, SENTENCES]
    cross_entropy: Annotated[float, between(0, 1), FIXED, SENTENCES]
    teacher: Annotated[str, choice("always", *TEACHERS), FIXED, SENTENCES]
    teacher_k: Annotated[float, at_least(0), FIXED, SENTENCES]
    teacher_slope: Annotated[float, at_least(0), FIXED, SENTENCES]
    teacher_least: Annotated[float, between(0, 1), FIXED, SENTENCES]


@dataclass
class Validation:
    beam: Annotated[int, between(1, 1000), SENTENCES]
    sentences: Annotated[int | None, at_least(1), SENTENCES]
    max_length: Annotated[int, between(1, 10_000), SENTENCES]
    scores: Annotated[Classes, SENTENCES]
    tokenize: Annotated[str | None, FIXED, SENTENCES]
    max_source_length: Annotated[int | None, between(2, 10_000), SENTENCES]


@dataclass(kw_only=True)
class Cache:
    """The settings of `data` for its cache, apart from the groups `data.vocabulary` and `data.limits`.

    Older runs lack those with defaults.
    """

    cache: Annotated[str, READS, CHANGEABLE]
    processes: Annotated[int | None, between(1, 1024), CHANGEABLE]
    strict: Annotated[bool, CHANGEABLE] = False
    clean: Annotated[Any, SEVERAL] = None


@dataclass
class Vocabulary:
    """The settings of `data.vocabulary`. `source_size`, `target_size` and `joint` exist only for parallel text."""

    kind: Annotated[str, choice("unigram", "bpe", "char", "word")]
    size: Annotated[int | None, between(5, 10_000_000)]
    minimum_count: Annotated[int, at_least(1)]
    sample: Annotated[int | None, at_least(1)]
    normalization: Annotated[str, choice("none", "nfc", "nfkc")]
    lowercase: bool
    reuse: File | None
    source_size: Annotated[int | None, between(5, 10_000_000)] = None
    target_size: Annotated[int | None, between(5, 10_000_000)] = None
    joint: bool = False


@dataclass
class Limits:
    """The settings of `data.limits`. Plain text has none of them, and captions have no `ratio`.

    The defaults set no limit.
    """

    minimum: Annotated[int, at_least(1)] = 1
    maximum: int | None = None
    ratio: Annotated[float | None, at_least(1)] = None


@dataclass
class Sources:
    """The arguments of corpora that name files. They may change when a run is resumed, since files may be moved."""

    directory: Annotated[File, CHANGEABLE]
    train: Annotated[Files, CHANGEABLE]
    valid: Annotated[Files, CHANGEABLE]
    test: Annotated[Files, CHANGEABLE]
    annotations: Annotated[File, CHANGEABLE]
    split_file: Annotated[File, CHANGEABLE]


@dataclass
class Encoder:
    """The settings of configs/encoder.yaml: `model.encoder` of captioners."""

    backbone: str
    layer: str | None
    weights: Annotated[str | None, READS, CHANGEABLE]
    size: Annotated[int, between(8, 1024, unit="pixels")]
    fit: Annotated[str, choice("crop", "squash")]
    fine_tune_from: Annotated[int | None, at_least(0)]
    lr: Annotated[float, ABOVE_0]
    augment: bool
    crop: Annotated[float, between(0.1, 1)] = 1.0  # older runs lack this and the next ones
    crop_size: Annotated[int | None, between(8, 1024, unit="pixels")] = None
    mirror_unless: Annotated[Any, SEVERAL] = None
    freeze: Annotated[Any, SEVERAL] = None


@dataclass
class Optimiser:
    name: Annotated[str, FIXED]
    lr: float


@dataclass
class Schedule:
    name: Annotated[str, FIXED]
    warmup: Annotated[int, at_least(0)]
    epochs: Annotated[float | None, ABOVE_0]
    every: Annotated[float, ABOVE_0]
    patience: Annotated[int, at_least(1)]


@dataclass
class Checkpoints:
    checkpoint: Files
    trust: Annotated[Classes, Setting(checkpoint=True)]


@dataclass
class PositionalCheckpoint:
    """The settings of commands that take a path with or without `checkpoint=`."""

    checkpoint: Annotated[Files, POSITIONAL]
    trust: Classes


@dataclass
class Machine:
    device: str
    threads: Threads


@dataclass
class InferenceMachine(Machine):
    """Where and in which precision a trained model runs, for commands without the settings of `Decode`."""

    precision: str


# The number of hypotheses decoded at once by default. Greedy decoding of 320 takes 14,900 steps/s, of 64 only 10,200
# (performance.md).
HYPOTHESES_PER_BATCH = 320
DEFAULT_MBR_SAMPLES = 60  # for minimum Bayes risk


@dataclass
class Decode:
    """The settings of configs/decoding.yaml, apart from `Machine`. Upper limits are far above useful values."""

    beam: Annotated[int, between(1, 1000), SEARCH]
    n_best: Annotated[int, between(1, 1000), Setting(scored=False)]
    length_penalty: Annotated[str, SEARCH]
    length_alpha: Annotated[float, between(0, 100), SEARCH]
    coverage_penalty: Annotated[float, between(0, 1_000_000), SEARCH]
    mbr: Annotated[str | None, TEXT, SEARCH]
    mbr_samples: Annotated[int | None, between(1, 1000), SEARCH]
    mbr_frequencies: Annotated[File | None, SEARCH]
    sample: Annotated[bool, SAMPLING]
    temperature: Annotated[float, between(0, 10_000), SAMPLING]
    top_k: Annotated[int, between(0, 1_000_000_000), SAMPLING]
    top_p: Annotated[Probability, SAMPLING]
    seed: Annotated[int, at_least(0), SAMPLING]
    max_length: Length
    max_source_length: Annotated[int | None, between(2, 10_000)]
    min_length: Annotated[int, at_least(1)]
    batch_size: Annotated[int | None, between(1, 1_000_000), Setting(scored=False)]
    precision: str


@dataclass
class DecodeCaptions(Decode):
    hard_attention: Annotated[str, choice("expected", "argmax", "sample")]


@dataclass
class Generate:
    """The settings of configs/generate.yaml for sampling."""

    n: Annotated[int, between(1, 1000)]
    max_length: Length
    stop: Annotated[list[str] | None, TEXT, SEVERAL]
    temperature: Annotated[float, between(0, 10_000)]
    top_k: Annotated[int, between(0, 1_000_000_000)]
    top_p: Probability
    seed: Annotated[int, at_least(0)]
    precision: str


@dataclass
class GenerateFiles:
    """The settings of configs/generate.yaml for input and output, and `stop`, which `Generate` also has."""

    prompt: Text | None
    stop: Annotated[list[str] | None, TEXT, SEVERAL]
    input: File | None
    output: NewFile | None
    format: Annotated[str, choice("text", "jsonl")]
    likeliest: Annotated[int, between(0, 1000)]


@dataclass
class Output:
    """A command's settings for its output."""

    format: Annotated[str, choice("text", "jsonl")]
    output: NewFile | None
    plot: Annotated[NewFile | None, ATTENTION]
    figures: Annotated[str, Figures]
    weights: Annotated[bool, ATTENTION]
    likeliest: Annotated[int, at_least(0)]
    attribution: Annotated[str | None, METHOD]
    contrast: Text | None
    end: bool


@dataclass
class AlignedOutput(Output):
    """The settings for the output of commands that can write alignments."""

    greyscale: bool
    alignments: Annotated[NewFile | None, ATTENTION]
    words: Annotated[str, Words]


@dataclass
class Translate(AlignedOutput):
    format: Annotated[str, choice("text", "jsonl", "grid")]
    input: File | None
    prefix: File | None
    replace_unknown: Annotated[bool, ATTENTION]


@dataclass
class Score(AlignedOutput):
    sources: File | None
    references: File


@dataclass
class Rescore(Checkpoints, InferenceMachine):
    """The settings of configs/rescore.yaml."""

    nbest: File
    reverse: Files
    lm: Files
    weights: Files
    tune: Files
    save_weights: NewFile | None
    output: NewFile | None
    format: Annotated[str, choice("text", "jsonl")]


@dataclass
class Embed(PositionalCheckpoint, InferenceMachine):
    """The settings of configs/embed.yaml."""

    input: File | None
    output: NewFile | None
    vector: Annotated[str, choice("last", "mean", "c")]
    plot: NewFile | None
    neighbours: Annotated[int, at_least(0)]


@dataclass
class Caption(Output):
    format: Annotated[str, choice("text", "jsonl", "coco")]
    images: Files
    recursive: bool


@dataclass
class Eval:
    """The settings of configs/eval.yaml for all tasks."""

    task: str | None
    split: Annotated[str, Setting(checkpoint=True)]
    bootstrap: Annotated[int, Setting(at_most=1_000_000)]
    format: Annotated[str, choice("table", "json", "jsonl")]
    report: NewFile | None
    seeds: Files


@dataclass
class EvalHypotheses(Eval):
    hypotheses: File | None
    references: Annotated[list[str], READS, SEVERAL]
    baseline: Files
    tokenize: str | None
    output: NewFile | None
    scores: Annotated[list[str], Setting(classes=True, several=True)]


@dataclass
class EvalTranslations(EvalHypotheses):
    testset: Annotated[str | None, READS, TEXT]
    langpair: Annotated[str | None, READS, TEXT]
    sources: File | None
    alignments: File | None
    gold: File | None
    words: Annotated[str | None, Words]
    lowercase: bool
    ter: bool
    length_bins: list[int]
    plot: NewFile | None
    figures: Annotated[str, Figures]
    greyscale: bool
    samples: Annotated[int, at_least(0)]
    beside: Annotated[list[str], READS, SEVERAL]


@dataclass
class EvalCaptions(EvalHypotheses):
    bound: int | None
    java: bool
    document_frequencies: File | None
    save_document_frequencies: NewFile | None


@dataclass
class EvalTexts(Eval):
    text: File | None
    window: Annotated[int | None, at_least(1)]
    likeliest: Annotated[int, at_least(0)]


@dataclass
class Demo(InferenceMachine):
    """The settings of configs/demo.yaml for the server."""

    host: Text
    port: int
    token: Text | None


@dataclass
class Inspect(PositionalCheckpoint):
    plot: NewFile | None
    figures: Annotated[str, Figures]
    text: Text | None
    pair: Text | None
    image: File | None
    input: Files | None
    units: Text | None
    heads: bool
    output: NewFile | None


@dataclass
class Export(PositionalCheckpoint):
    output: NewFile
    precision: Annotated[str, choice("fp16", "fp32")]
    licence: Text | None


@dataclass
class Check:
    answer: Annotated[Any, Setting(positional=True, classes=True, several=True)]


@dataclass
class Report:
    runs: Annotated[Files, POSITIONAL]


Schemas = Mapping[str, Sequence[type]]
"""The dataclasses that declare the settings of each group; the group of settings outside groups is called ''."""

DATA: Schemas = {"data": (Sources, Cache), "data.vocabulary": (Vocabulary,), "data.limits": (Limits,)}
TRAIN: Schemas = {
    **{"": (Groups, Run), "embeddings": (Embeddings,), "optim": (Optimiser,), "schedule": (Schedule,)},
    **{"train": (Train,), "validation": (Validation,), "model": (), "model.encoder": (Encoder,), **DATA},
}
EVAL = (Checkpoints, EvalTranslations, EvalCaptions, EvalTexts, DecodeCaptions, Machine)
COMMANDS: Mapping[str, Schemas] = {
    "prepare": TRAIN,
    "train": TRAIN,
    "translate": {"": (Checkpoints, Translate, Decode, Machine)},
    "caption": {"": (Checkpoints, Caption, DecodeCaptions, Machine)},
    "generate": {"": (Checkpoints, GenerateFiles, Generate, Machine)},
    "score": {"": (Checkpoints, Score, InferenceMachine)},
    "rescore": {"": (Rescore,)},
    "embed": {"": (Embed,)},
    "eval": {"": EVAL, **DATA},
    "inspect": {"": (Inspect,)},
    "report": {"": (*EVAL, Report), **DATA},
    "export": {"": (Export,)},
    "demo": {"": (Checkpoints, Demo)},
    "check": {"": (Check,)},
}


def parameters(target: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or of a class's constructor, by name.

    Before Python 3.11.4, `inspect.signature` reads `__new__` of a class that inherits both, as users' models do.
    """
    has_init = isinstance(target, type) and target.__init__ is not object.__init__  # type: ignore[misc]
    signature = inspect.signature(target.__init__ if has_init else target, eval_str=True)
    return dict(list(signature.parameters.items())[has_init:])  # without `self`


def declared(schema: Any) -> Mapping[str, Setting]:
    """The declarations of a dataclass's fields, or of the arguments of another class or a function, by name."""
    return {name: _merge_properties(parameter.annotation) for name, parameter in parameters(schema).items()}


@cache
def command_settings(command: str) -> Mapping[str, Setting]:
    """The declarations of a command's settings, by their full names."""
    settings: dict[str, Setting] = {}
    for group, schemas in COMMANDS.get(command, {}).items():
        for schema in schemas:
            settings |= {f"{group}.{name}".lstrip("."): setting for name, setting in declared(schema).items()}
    return settings


@cache
def other_names() -> Mapping[str, Sequence[str]]:
    """The names that other toolkits and tutorials use for each setting, by the setting's full name."""
    names: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_bytes())  # type: ignore[no-untyped-call]
    return names


def other_name(name: str, settings: Collection[str]) -> str | None:
    """The first of these settings, in any group, that other toolkits call `name`; None if there is none."""
    last = name.rpartition(".")[2]
    return next((setting for setting, names in other_names().items() if setting in settings and last in names), None)


def out_of_range(schema: Any, values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A clause for each invalid value of the fields of a dataclass, the schema: unknown choices first, then broken
    limits. The settings' full names begin with the prefix.
    """
    problems = (setting.problem(prefix + name, values.get(name)) for name, setting in declared(schema).items())
    return sorted(filter(None, problems), key=lambda problem: not problem.startswith("Unknown"))


def check_values(settings: Any, prefix: str = "") -> None:
    """Raise an InputError that names all values of a dataclass instance that are out of range."""
    if problems := out_of_range(type(settings), vars(settings), prefix):
        raise InputError(" ".join(f"{problem}." for problem in problems))


def _merge_properties(hint: Any) -> Setting:
    """The properties that all parts of a type hint, such as `File | None`, declare."""
    merged: dict[str, Any] = {}
    for part in typing.get_args(hint):
        setting = part if isinstance(part, Setting) else _merge_properties(part)
        merged |= {name: value for name, value in vars(setting).items() if value != getattr(NONE, name)}
    return Setting(**merged)
