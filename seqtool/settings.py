"""From Hydra's configuration to typed settings, and messages about those that cannot be used."""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from seqtool.errors import InputError

T = TypeVar("T")
Config = DictConfig | Mapping[str, Any]

SHOWN = 12  # choices in a message
MISSING = "???"  # OmegaConf's mark of a setting that must be given
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}

# What other toolkits (fairseq, OpenNMT, JoeyNMT, Hugging Face) and tutorials call a setting, without its group.
OTHER_NAMES = {
    "beam": "beam_size beam_width num_beams",
    "validation.beam": "beam beam_size beam_width num_beams",
    "max_length": "max_len max_len_b max_new_tokens max_output_length max_decode_length",
    "validation.max_length": "max_length max_len max_output_length",
    "min_length": "min_len min_len_b min_new_tokens min_output_length",
    "length_alpha": "alpha beam_alpha lenpen len_pen",
    "n_best": "nbest num_return_sequences",
    "n": "nbest n_best num_return_sequences num_samples",
    "sample": "do_sample sampling",
    "checkpoint": "ckpt model model_path path",
    "input": "src source sources",
    "sources": "src source",
    "hypotheses": "hyp sys system hypothesis predictions",
    "references": "ref refs reference tgt target",
    "run": "name run_name output output_dir save_dir save_model model_dir",
    "device": "gpu gpus cuda",
    "precision": "fp16 bf16 amp mixed_precision",
    "optim": "optimizer optimiser",
    "optim.lr": "lr learning_rate",
    "schedule": "scheduler scheduling lr_scheduler lr_scheduler_type",
    "schedule.warmup": "warmup warmup_steps warmup_updates learning_rate_warmup",
    "train.epochs": "epochs epoch max_epoch max_epochs num_epochs num_train_epochs",
    "train.steps": "steps max_steps max_update max_updates num_steps train_steps updates",
    "train.batch_size": "batch_size train_batch_size per_device_train_batch_size",
    "train.bptt": "bptt seq_len seq_length sequence_length block_size",
    "train.accumulate": "accum_count batch_multiplier gradient_accumulation_steps update_freq",
    "train.clip_norm": "clip clip_norm clip_grad clip_grad_norm grad_clip gradient_clip_val max_grad_norm",
    "train.label_smoothing": "label_smoothing label_smoothing_factor smoothing",
    "train.validate_every": "eval_every eval_steps valid_steps validation_freq",
    "train.log_every": "log_interval logging_freq logging_steps report_every",
    "train.patience": "patience early_stopping early_stopping_patience",
    "init_from": "train_from load_model finetune_from_model pretrained",
    "data.train": "train_data train_file train_path trainpref",
    "data.valid": "dev val valid_data val_data validpref validation_file",
    "data.directory": "data_dir image_dir images_dir image_root",
    "data.vocabulary.size": "vocab_size vocabulary_size",
    "data.vocabulary.minimum_count": "min_freq min_count word_min_freq",
    "model.hidden": "hidden_size hidden_dim hid_dim rnn_size d_model",
    "model.decoder_hidden": "hidden hidden_size hidden_dim hid_dim rnn_size",
    "model.width": "d_model hidden_size n_embd",
    "model.layers": "num_layers n_layers n_layer",
    "model.encoder_layers": "enc_layers num_encoder_layers num_layers",
    "model.heads": "n_head n_heads nhead num_heads num_attention_heads",
    "model.feed_forward": "d_ff dim_feedforward ff_size ffn_dim transformer_ff",
    "model.embedding": "emb_dim emb_size embed_size embedding_dim embedding_size word_vec_size",
    "model.dropout": "dropout p_dropout dropout_rate",
}


def typed(schema: type[T], config: Config, *, prefix: str = "") -> T:
    """The settings in `config` as the dataclass `schema`, which may hold further dataclasses.

    Unknown settings, missing ones and values of the wrong type raise one InputError that names them all (as
    `train.batch_size`), the unknown ones with the nearest real one. `prefix` begins the names if `config` does not
    know its own place.
    """
    prefix = full_name(config) or prefix
    target = OmegaConf.structured(schema)
    problems = _fill(target, schema, plain(config), prefix)
    for name in (join(prefix, key) for key in sorted(OmegaConf.missing_keys(target))):
        problems.setdefault(name, f"missing setting '{name}'")
    if problems:
        raise InputError(sentence(list(problems.values())))
    return typing.cast(T, OmegaConf.to_object(target))


def checked(
    target: Callable[..., Any], arguments: Mapping[str, Any], *, prefix: str, parts: Iterable[str] = ()
) -> dict[str, Any]:
    """The settings as arguments of `target` besides its `parts`; InputError as for `typed`."""
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(target, eval_str=True).parameters.items():
        if name in parts or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in arguments or parameter.default is parameter.empty:
            fields.append((name, _checkable(parameter.annotation), dataclasses.field()))
        else:  # the target has its own default: only the name matters here
            fields.append((name, Any, dataclasses.field(default=None)))
    found: Any = typed(dataclasses.make_dataclass("Settings", fields, kw_only=True), arguments, prefix=prefix)
    return {key: getattr(found, key) for key in arguments}


def check_types(schema: Any, values: Mapping[str, Any]) -> None:
    """Raise InputError for a value from JSON that is not itself of the type that its setting has in the dataclass
    `schema`: `typed` would take a number written as text.
    """
    hints = typing.get_type_hints(schema)
    for name, value in values.items():
        if not _is_of(value, hints[name]):
            raise InputError(f"Setting '{name}' must be {_kind(hints[name])}.")


def _is_of(value: Any, hint: Any) -> bool:
    alternatives = _alternatives(hint)
    if isinstance(value, list):
        lists = [one for one in alternatives if typing.get_origin(one) is list]
        return any(all(_is_of(inner, typing.get_args(one)[0]) for inner in value) for one in lists)
    return type(value) in alternatives or (type(value) is int and float in alternatives)


def plain(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts, lists and scalars, interpolations resolved."""
    if not isinstance(config, DictConfig):
        return dict(config)
    try:
        return typing.cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"Setting '{error.full_key}' cannot be resolved: {reason}.") from error


def resolved(config: Config) -> DictConfig:
    """The configuration with interpolations resolved for good: it can be saved as YAML and loaded again."""
    return typing.cast(DictConfig, OmegaConf.create(escaped(plain(config))))


def names(value: str | Sequence[str] | ListConfig | None) -> list[str]:
    """A setting that holds one name, several or null, as a list of names."""
    if value is None:
        return []
    found = [value] if isinstance(value, str) else [str(name) for name in value]
    if "" in found:
        raise InputError("A name is empty: write the name of a file or directory.")
    return found


def unknown(name: str, known: Iterable[str], *, kind: str = "setting") -> str:
    """The clause that says that `name` is not among the `known` names, and which of them is nearest.

    Dotted names are compared by their last part first, so a right name in the wrong place is recognised. A setting may
    also have the name that it has elsewhere.
    """
    parent, _, last = name.rpartition(".")

    def likeness(other: str) -> tuple[float, float]:
        other_parent, _, other_last = other.rpartition(".")
        match = difflib.SequenceMatcher(None, last, other_last).ratio()
        return match, match + difflib.SequenceMatcher(None, parent, other_parent).ratio() / 2

    choices = sorted(known)
    best = max(choices, key=lambda other: likeness(other)[1], default=None)
    clause = f"unknown {kind} '{name}'"
    if kind == "setting" and (here := other_name(name, choices)) is not None:
        return f"{clause}; did you mean '{here}'?"
    if best is not None and likeness(best)[0] >= 0.6:
        return f"{clause}; did you mean '{best}'?"
    if len(choices) > SHOWN and kind != "setting":
        nearest = sorted(choices, key=lambda other: -likeness(other)[1])[:SHOWN]
        return f"{clause}; choose from {', '.join(nearest)} and {len(choices) - SHOWN} more"
    return f"{clause}; choose from {', '.join(choices)}" if 0 < len(choices) <= SHOWN else clause


def other_name(name: str, known: Collection[str]) -> str | None:
    """Which of the `known` settings has this name elsewhere, in whatever group."""
    last = name.rpartition(".")[2]
    return next((other for other, names in OTHER_NAMES.items() if other in known and last in names.split()), None)


def sentence(clauses: Sequence[str]) -> str:
    """One sentence made of the given clauses."""
    if len(clauses) > 1:
        clauses = [re.sub(r"; (did you mean .*\?|choose from .*)$", r" (\1)", clause) for clause in clauses]
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def escape(text: str) -> str:
    """`text` written so that OmegaConf reads back `text`, where a bare `${…}` would be an interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _fill(target: DictConfig, schema: Any, values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Set the values in `target` one by one; returns the problems by the settings' full names."""
    hints = typing.get_type_hints(schema)
    known = {field.name: join(prefix, field.name) for field in dataclasses.fields(schema)}
    problems = {}
    for key, value in values.items():
        name = join(prefix, str(key))
        if key not in known:
            problems[name] = unknown(name, known.values())
        elif (inner := _dataclass_in(hints[key])) is not None and isinstance(value, Mapping):
            if OmegaConf.is_missing(target, key) or target[key] is None:
                target[key] = OmegaConf.structured(inner)
            problems |= _fill(target[key], inner, value, name)
        elif _is_beyond(value):
            problems[name] = f"setting '{name}' must be {_kind(hints[key])} that a computer can work with, not {value}"
        elif value != MISSING:
            try:
                target[key] = escaped(value)
                found = target[key]  # text with ${ is checked only here
                _ = list(found) if isinstance(found, ListConfig) else found
            except ValidationError:
                shown = "null" if value is None else repr(value)
                problems[name] = f"setting '{name}' must be {_kind(hints[key])}, not {shown}"
                target[key] = MISSING
    return problems


def _is_beyond(value: Any) -> bool:
    """Whether it is a number no setting can use: NaN, or a whole number larger than float64 holds exactly."""
    return isinstance(value, int | float) and (value != value or (isinstance(value, int) and abs(value) > 2**53))


def _checkable(hint: Any) -> Any:
    """The type hint if OmegaConf can check it (scalars, lists of them, null, dataclasses), otherwise Any."""
    if hint in KINDS or dataclasses.is_dataclass(hint):
        return hint
    if typing.get_origin(hint) is list and all(argument in KINDS for argument in typing.get_args(hint)):
        return hint
    if class_in(hint) is not None:
        return str
    alternatives = _alternatives(hint)
    if len(alternatives) == 2 and type(None) in alternatives:
        return hint if all(_checkable(one) is one for one in alternatives) else Any
    return Any


def class_in(hint: Any) -> Any:
    """`Part` of the hint `str | type[Part]`: a setting that is the name of such a class."""
    classes = [one for one in _alternatives(hint) if typing.get_origin(one) is type]
    return typing.get_args(classes[0])[0] if classes and str in _alternatives(hint) else None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _dataclass_in(hint: Any) -> Any:
    return next((one for one in _alternatives(hint) if dataclasses.is_dataclass(one)), None)


def _kind(hint: Any) -> str:
    """The hint in words: `a whole number or null`."""
    words = []
    for one in _alternatives(hint):
        origin = typing.get_origin(one) or one
        words.append(KINDS.get(one, "a list" if origin is list else "a group of settings"))
    return " or ".join(words)


def escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: escaped(inner) for key, inner in value.items()}
    return [escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def full_name(config: Config) -> str:
    """The settings' place in the whole configuration, if they know it: `model`, or nothing."""
    return str(config._get_full_key(None)) if isinstance(config, DictConfig) else ""


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings under their full names, those of groups as `group.name`."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, join(prefix, str(key)))
        else:
            yield join(prefix, str(key)), value


def join(prefix: str, name: str) -> str:
    """The full name of a setting."""
    return f"{prefix}.{name}" if prefix else name
