"""Every setting but for its default and its help, which are a line of YAML in configs/.

A dataclass below declares the settings of one place, such as `train`, `model.encoder` or a command's own; COMMANDS
lists the places of each command. `Annotated[type, …]` says what else there is to know (`Setting`), and all that treats
settings differently asks for it here: types and ranges, quoting and ~ on the command line, completion, files that are
read and never overwritten, files of a sweep's jobs, what a resumed run may change, which task a setting belongs to,
and hints for names from other toolkits. The dataclasses with which the code works derive from these and add the checks
that need code. The settings of models, corpora, optimisers and schedules are the arguments of their classes; those in
a class of your own are annotated in the same way, such as `pages: Files`. Neither torch nor Hydra is imported here, and
tests/test_declarations.py compares all this with the YAML files.
"""

import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from seqtool.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What there is to know of a setting besides its name, type, default and help.

    reads, writes: it names a file or directory that is read, or written; with `text`, something that is no path.
    several: it may name several, `a,b,c`.
    text: any text, taken literally.
    classes: names of Python modules or classes.
    positional: arguments without `key=` are its values.
    at_least, at_most, above, below: the limits of a number; `unit` follows them in messages.
    choices: the values that it may have.
    fixed: a resumed run cannot change it; None is as for the group that it is in.
    tasks: the only tasks that have it; none stands for all.
    method: only searching, or only sampling, uses it.
    also: what other toolkits (fairseq, OpenNMT, JoeyNMT, Hugging Face) and tutorials call it.
    """

    reads: bool = False
    writes: bool = False
    several: bool = False
    text: bool = False
    classes: bool = False
    positional: bool = False
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    fixed: bool | None = None
    tasks: tuple[str, ...] = ()
    method: str = ""
    also: str = ""

    @property
    def is_literal(self) -> bool:
        """Whether its value is a name or a text, which Hydra's grammar must not interpret."""
        return self.reads or self.writes or self.text or self.classes

    @property
    def is_path(self) -> bool:
        return (self.reads or self.writes) and not self.text

    def problem(self, name: str, value: Any) -> str | None:
        """What is wrong with a value of this setting, called `name`, as a clause; None for a good one, and for null."""
        if value is None:
            return None
        if self.choices:
            return None if value in self.choices else f"Unknown {name} '{value}'; choose from {', '.join(self.choices)}"
        too_small = (self.at_least is not None and not value >= self.at_least) or (
            self.above is not None and not value > self.above
        )
        too_large = self.at_most is not None and value > self.at_most
        shown = str(value)
        if too_large and self.above is None:
            rule, shown = f"at most {self.at_most:,}", f"{value:,}"
        elif too_small or too_large:
            rule = f"at least {self.at_least}" if self.above is None else f"above {self.above}"
            rule += f" and at most {self.at_most}" if self.above is not None and self.at_most is not None else ""
        elif self.below is not None and value >= self.below:
            rule = f"below {self.below}"
        else:
            return None
        rule = f"{rule} {self.unit}".rstrip()
        if name.startswith("data."):
            return f"{name} is {shown} but must be {rule}"
        return f"{name} must be {rule}, not {shown}"


NONE = Setting()


def between(at_least: float, at_most: float | None = None, unit: str = "") -> Setting:
    return Setting(at_least=at_least, at_most=at_most, unit=unit)


def choice(*choices: str) -> Setting:
    return Setting(choices=choices)


def also(names: str) -> Setting:
    return Setting(also=names)


READS, WRITES, SEVERAL, TEXT = Setting(reads=True), Setting(writes=True), Setting(several=True), Setting(text=True)
POSITIONAL, ABOVE_0 = Setting(positional=True), Setting(above=0)
FIXED, CHANGEABLE = Setting(fixed=True), Setting(fixed=False)
SENTENCES, STREAMS = Setting(tasks=("translation", "captioning")), Setting(tasks=("language_modelling",))
SEARCH, SAMPLING = Setting(method="search"), Setting(method="sampling")

File = Annotated[str, READS]
Files = Annotated[Any, READS, SEVERAL]  # a name, several or null: `settings.names`
NewFile = Annotated[str, WRITES]
Text = Annotated[str, TEXT]
Classes = Annotated[Any, Setting(classes=True, several=True)]

Device = Annotated[str, also("gpu gpus cuda")]
Threads = Annotated[int | None, between(1, 1024)]
Precision = Annotated[str, also("fp16 bf16 amp mixed_precision")]
Probability = Annotated[float, Setting(above=0, at_most=1)]
Length = Annotated[
    int, between(1, 10_000), also("max_len max_len_b max_new_tokens max_output_length max_decode_length")
]
Words = choice("spaces", "marks", "characters")
Input = Annotated[str | None, READS, also("src source sources")]
References = also("ref refs reference tgt target")
Trained = also("ckpt model model_path path")


@dataclass
class Groups:
    model: Annotated[Any, FIXED]
    data: Annotated[Any, FIXED]
    optim: Annotated[Any, also("optimizer optimiser")]
    schedule: Annotated[Any, also("scheduler scheduling lr_scheduler lr_scheduler_type")]


@dataclass
class Run:
    """The settings at the top of configs/train.yaml."""

    run: Annotated[str | None, WRITES, TEXT, also("name run_name output output_dir save_dir save_model model_dir")]
    init_from: Annotated[str | None, READS, FIXED, also("train_from load_model finetune_from_model pretrained")]
    initialisation: Annotated[str, FIXED]
    seed: Annotated[int, between(0), FIXED]
    device: Device
    threads: Threads
    precision: Annotated[Precision, FIXED]
    trust: Classes
    initialisation_gain: Annotated[float, FIXED]
    forget_bias: Annotated[float | None, FIXED]


@dataclass
class Embeddings:
    source: Annotated[str | None, READS, FIXED]
    target: Annotated[str | None, READS, FIXED]


@dataclass
class Train:
    batch_size: Annotated[int, ABOVE_0, FIXED, also("batch_size train_batch_size per_device_train_batch_size")]
    batch_by: Annotated[str, choice("sentences", "tokens"), FIXED, SENTENCES]
    pool: Annotated[int, ABOVE_0, FIXED, SENTENCES]
    bptt: Annotated[int, ABOVE_0, FIXED, STREAMS, also("bptt seq_len seq_length sequence_length block_size")]
    accumulate: Annotated[
        int, ABOVE_0, FIXED, also("accum_count batch_multiplier gradient_accumulation_steps update_freq")
    ]
    normalise: Annotated[str, choice("tokens", "sentences"), FIXED]
    clip_norm: Annotated[
        float | None, ABOVE_0, also("clip clip_norm clip_grad clip_grad_norm grad_clip gradient_clip_val max_grad_norm")
    ]
    label_smoothing: Annotated[
        float, Setting(at_least=0, below=1), also("label_smoothing label_smoothing_factor smoothing")
    ]
    epochs: Annotated[int | None, between(0), also("epochs epoch max_epoch max_epochs num_epochs num_train_epochs")]
    steps: Annotated[
        int | None, between(0), also("steps max_steps max_update max_updates num_steps train_steps updates")
    ]
    minutes: Annotated[float | None, between(0)]
    validate_every: Annotated[int | None, ABOVE_0, also("eval_every eval_steps valid_steps validation_freq")]
    save_minutes: Annotated[float | None, ABOVE_0]
    patience: Annotated[int | None, ABOVE_0, also("patience early_stopping early_stopping_patience")]
    best_by: str | None
    keep_last: Annotated[int, ABOVE_0]
    average_last: Annotated[int, between(0)]
    log_every: Annotated[int, ABOVE_0, also("log_interval logging_freq logging_steps report_every")]
    resume: Annotated[bool | str, choice("true", "false", "auto")]
    gradient_flow: bool
    tensorboard: bool
    show: Annotated[int, between(0, 1000)]
    fewer_streams: Annotated[bool, FIXED, STREAMS]


@dataclass
class Validation:
    beam: Annotated[int, between(1, 1000), SENTENCES, also("beam beam_size beam_width num_beams")]
    sentences: Annotated[int | None, between(1), SENTENCES]
    max_length: Annotated[int, between(1, 10_000), SENTENCES, also("max_length max_len max_output_length")]
    scores: Annotated[Classes, SENTENCES]
    tokenize: Annotated[str | None, FIXED, SENTENCES]
    max_source_length: Annotated[int | None, between(2, 10_000), SENTENCES]


@dataclass
class Cache:
    """The settings of `data` that are not the corpus's own, besides `vocabulary` and `limits`."""

    cache: Annotated[str, READS, CHANGEABLE]
    processes: Annotated[int | None, between(1, 1024), CHANGEABLE]


@dataclass
class Vocabulary:
    """The last three are of two sides, and so of pairs alone."""

    kind: Annotated[str, choice("unigram", "bpe", "char", "word")]
    size: Annotated[int, between(5, 10_000_000), also("vocab_size vocabulary_size")]
    minimum_count: Annotated[int, between(1), also("min_freq min_count word_min_freq")]
    sample: Annotated[int | None, between(1)]
    normalization: Annotated[str, choice("none", "nfc", "nfkc")]
    lowercase: bool
    reuse: File | None
    source_size: Annotated[int | None, between(5, 10_000_000)] = None
    target_size: Annotated[int | None, between(5, 10_000_000)] = None
    joint: bool = False


@dataclass
class Limits:
    """A limit that a kind of data does not have is none: captions have no ratio, a text has none of them."""

    minimum: Annotated[int, between(1)] = 1
    maximum: int | None = None
    ratio: Annotated[float | None, between(1)] = None


@dataclass
class Sources:
    """The arguments of corpora that name files, which may have moved since a run began."""

    directory: Annotated[File, CHANGEABLE, also("data_dir image_dir images_dir image_root")]
    train: Annotated[Files, CHANGEABLE, also("train_data train_file train_path trainpref")]
    valid: Annotated[Files, CHANGEABLE, also("dev val valid_data val_data validpref validation_file")]
    test: Annotated[Files, CHANGEABLE]
    annotations: Annotated[File, CHANGEABLE]
    split_file: Annotated[File, CHANGEABLE]


@dataclass
class Sizes:
    """Arguments that several models have, which check them (`models.sizes`)."""

    hidden: Annotated[int, also("hidden_size hidden_dim hid_dim rnn_size d_model")]
    decoder_hidden: Annotated[int, also("hidden hidden_size hidden_dim hid_dim rnn_size")]
    width: Annotated[int, also("d_model hidden_size n_embd")]
    layers: Annotated[int, also("num_layers n_layers n_layer")]
    encoder_layers: Annotated[int, also("enc_layers num_encoder_layers num_layers")]
    heads: Annotated[int, also("n_head n_heads nhead num_heads num_attention_heads")]
    feed_forward: Annotated[int, also("d_ff dim_feedforward ff_size ffn_dim transformer_ff")]
    embedding: Annotated[int, also("emb_dim emb_size embed_size embedding_dim embedding_size word_vec_size")]
    dropout: Annotated[float, also("dropout p_dropout dropout_rate")]


@dataclass
class Encoder:
    """The settings of configs/encoder.yaml: `model.encoder` of captioners."""

    backbone: str
    layer: str | None
    weights: Annotated[str | None, READS, CHANGEABLE]
    size: Annotated[int, between(8, 1024, unit="pixels")]
    fit: Annotated[str, choice("crop", "squash")]
    fine_tune_from: Annotated[int | None, between(0, unit="or null")]
    lr: Annotated[float, ABOVE_0]
    augment: bool


@dataclass
class Optimiser:
    name: Annotated[str, FIXED]
    lr: Annotated[float, also("lr learning_rate")]


@dataclass
class Schedule:
    name: Annotated[str, FIXED]
    warmup: Annotated[int, between(0), also("warmup warmup_steps warmup_updates learning_rate_warmup")]


@dataclass
class Checkpoints:
    checkpoint: Annotated[Files, Trained]
    trust: Classes


@dataclass
class Machine:
    device: Device
    threads: Threads


@dataclass
class Decode:
    """The settings of configs/decoding.yaml besides the machine. The upper limits are far beyond any useful value."""

    beam: Annotated[int, between(1, 1000), SEARCH, also("beam_size beam_width num_beams")]
    n_best: Annotated[int, between(1, 1000), also("nbest num_return_sequences")]
    length_penalty: Annotated[str, SEARCH]
    length_alpha: Annotated[float, between(0, 100), SEARCH, also("alpha beam_alpha lenpen len_pen")]
    coverage_penalty: Annotated[float, between(0, 1e6), SEARCH]
    sample: Annotated[bool, SAMPLING, also("do_sample sampling")]
    temperature: Annotated[float, between(0, 1e4), SAMPLING]
    top_k: Annotated[int, between(0, 10**9), SAMPLING]
    top_p: Annotated[Probability, SAMPLING]
    seed: Annotated[int, between(0), SAMPLING]
    max_length: Length
    max_source_length: Annotated[int | None, between(2, 10_000)]
    min_length: Annotated[int, between(1), also("min_len min_len_b min_new_tokens min_output_length")]
    batch_size: Annotated[int | None, between(1, 1_000_000)]
    precision: Precision


@dataclass
class DecodeCaptions(Decode):
    hard_attention: Annotated[str, choice("expected", "argmax", "sample")]


@dataclass
class Read:
    """What matters of the settings above for a text that is read, not written."""

    precision: Precision


@dataclass
class Generate:
    """The settings of configs/generate.yaml for drawing texts."""

    n: Annotated[int, between(1, 1000), also("nbest n_best num_return_sequences num_samples")]
    max_length: Length
    stop: Annotated[list[str] | None, TEXT, SEVERAL]
    temperature: Annotated[float, between(0, 1e4)]
    top_k: Annotated[int, between(0, 10**9)]
    top_p: Probability
    seed: Annotated[int, between(0)]
    precision: Precision


@dataclass
class GenerateFiles:
    """Those for input and output. What ends a text is checked with both."""

    prompt: Text | None
    stop: Annotated[list[str] | None, TEXT, SEVERAL]
    input: Input
    output: NewFile | None
    format: Annotated[str, choice("text", "jsonl")]


@dataclass
class Output:
    """A command's settings for its output."""

    format: Annotated[str, choice("text", "jsonl")]
    output: NewFile | None
    plot: NewFile | None
    weights: bool
    likeliest: Annotated[int, between(0)]
    end: bool


@dataclass
class AlignedOutput(Output):
    """Those of commands that write alignments."""

    alignments: NewFile | None
    words: Annotated[str, Words]


@dataclass
class Translate(AlignedOutput):
    input: Input
    prefix: File | None
    replace_unknown: bool


@dataclass
class Score(AlignedOutput):
    sources: Annotated[str | None, READS, also("src source")]
    references: Annotated[str, READS, SEVERAL, References]


@dataclass
class Caption(Output):
    format: Annotated[str, choice("text", "jsonl", "coco")]
    images: Files
    recursive: bool


@dataclass
class Eval:
    """The settings of configs/eval.yaml for every task."""

    split: str
    bootstrap: Annotated[int, Setting(at_most=1_000_000)]
    format: Annotated[str, choice("table", "json", "jsonl")]
    report: NewFile | None


@dataclass
class EvalHypotheses(Eval):
    hypotheses: Annotated[str | None, READS, also("hyp sys system hypothesis predictions")]
    references: Annotated[list[str], READS, SEVERAL, References]
    baseline: File | None
    tokenize: str | None
    output: NewFile | None
    scores: Annotated[list[str], Setting(classes=True, several=True)]


@dataclass
class EvalTranslations(EvalHypotheses):
    testset: Annotated[str | None, READS, TEXT]
    langpair: Annotated[str | None, READS, TEXT]
    sources: Annotated[str | None, READS, also("src source")]
    alignments: File | None
    gold: File | None
    words: Annotated[str | None, Words]
    lowercase: bool
    ter: bool
    length_bins: list[int]
    plot: NewFile | None
    samples: Annotated[int, between(0)]
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
    likeliest: Annotated[int, between(0)]


@dataclass
class EvalTask:
    task: str | None


@dataclass
class Demo:
    """The settings of configs/demo.yaml for the server."""

    host: Text
    port: int
    token: Text | None
    device: Device
    threads: Threads
    precision: Precision


@dataclass
class Inspect:
    checkpoint: Annotated[Files, POSITIONAL, Trained]
    plot: NewFile | None


@dataclass
class Report:
    runs: Annotated[Files, POSITIONAL]


Places = Mapping[str, Sequence[type]]

DATA: Places = {"data": (Sources, Cache), "data.vocabulary": (Vocabulary,), "data.limits": (Limits,)}
TRAIN: Places = {
    **{"": (Groups, Run), "embeddings": (Embeddings,), "optim": (Optimiser,), "schedule": (Schedule,)},
    **{"train": (Train,), "validation": (Validation,), "model": (Sizes,), "model.encoder": (Encoder,), **DATA},
}
EVAL = (EvalTask, Checkpoints, EvalTranslations, EvalCaptions, EvalTexts, DecodeCaptions, Machine)
COMMANDS: Mapping[str, Places] = {
    "prepare": TRAIN,
    "train": TRAIN,
    "translate": {"": (Checkpoints, Translate, Decode, Machine)},
    "caption": {"": (Checkpoints, Caption, DecodeCaptions, Machine)},
    "generate": {"": (Checkpoints, GenerateFiles, Generate, Machine)},
    "score": {"": (Checkpoints, Score, Read, Machine)},
    "eval": {"": EVAL, **DATA},
    "inspect": {"": (Inspect,)},
    "report": {"": (*EVAL, Report), **DATA},
    "demo": {"": (Checkpoints, Demo)},
}


@cache
def declared(schema: Any) -> Mapping[str, Setting]:
    """What is declared of the fields of a dataclass, or of the arguments of any class or function."""
    parameters = inspect.signature(schema, eval_str=True).parameters
    return {name: _merged(parameter.annotation) for name, parameter in parameters.items()}


@cache
def of_command(command: str) -> Mapping[str, Setting]:
    """What is declared of a command's settings, by their full names."""
    return {
        f"{place}.{name}".lstrip("."): setting
        for place, schemas in COMMANDS.get(command, {}).items()
        for schema in schemas
        for name, setting in declared(schema).items()
    }


def other_name(name: str, settings: Collection[str]) -> str | None:
    """Which of these settings has this name in other toolkits, in whatever group."""
    last = name.rpartition(".")[2]
    declarations = (pair for command in COMMANDS for pair in of_command(command).items())
    return next((full for full, one in declarations if full in settings and last in one.also.split()), None)


def out_of_range(schema: Any, values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What is wrong with the values of a dataclass's fields, as clauses: first those that are no choice, then those
    too small or too large. `prefix` begins their names.
    """
    problems = (setting.problem(prefix + name, values.get(name)) for name, setting in declared(schema).items())
    return sorted(filter(None, problems), key=lambda problem: not problem.startswith("Unknown"))


def check_values(settings: Any, prefix: str = "") -> None:
    """Raise one InputError that names every value out of range in an instance of a dataclass."""
    if problems := out_of_range(type(settings), vars(settings), prefix):
        raise InputError(" ".join(f"{problem}." for problem in problems))


def _merged(hint: Any) -> Setting:
    """All that a type hint such as `File | None` declares."""
    merged: dict[str, Any] = {}
    for part in (*typing.get_args(hint), hint):
        for setting in getattr(part, "__metadata__", ()):
            if isinstance(setting, Setting):
                merged |= {name: value for name, value in vars(setting).items() if value != getattr(NONE, name)}
    return Setting(**merged)
