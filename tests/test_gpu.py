"""Tests that a GPU gives the same results as the CPU. Some of them run on the CPU, too, so that they run everywhere.

bash scripts/test.sh -m gpu; where there is no GPU, one is simulated (pretended_gpu.py).
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_models import (
    MODELS,
    VOCABULARY,
    copy_with_fast_parts,
    make_captioner,
    make_model,
    random_images,
    random_sentences,
)
from torch import Tensor

from seqtool.cli import main as cli
from seqtool.data.batches import Batch, make_source, make_target
from seqtool.decoding.batching import DecodeSettings, Sources, decode, encoded_sentences
from seqtool.decoding.common import Hypothesis
from seqtool.models.categorical import categorical
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.hard_attention import DrawnLocations, Rows
from seqtool.models.inputs import Annotations
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory
from seqtool.runtime.precision import autocast, without_tf32
from seqtool.training import checkpoint
from seqtool.training.losses import TrainingLoss

Model = EncoderDecoder[Any]
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
CPU = torch.device("cpu")
TRANSLATORS = [
    *("bahdanau-gru", "bahdanau-gru_cho", "bahdanau-deep", "luong", "sutskever-lstm", "sutskever-rnn"),
    *("sutskever-every_step-last", "sutskever-both-mean", "sutskever-initial_state-max"),
    *("transformer", "transformer-post"),
]
CAPTIONERS = [
    "transformer-captioner",
    "show_tell-first_step",
    "show_tell-both-max",
    "show_tell-gru",
    "show_attend_tell-soft",
    "show_attend_tell-hard",
]


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return device_or_skip(request.param)


def device_or_skip(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here: torch.cuda.is_available() is false")
    return torch.device(name)


@pytest.fixture(params=[*TRANSLATORS, *CAPTIONERS])
def case(request: pytest.FixtureRequest) -> tuple[Model, Batch]:
    """Return a model of each family, and a batch of sentences or captions of different lengths."""
    target = make_target(random_sentences(6, seed=2))
    if request.param in MODELS:
        return make_model(request.param), Batch(make_source(random_sentences(6, seed=1)), target, np.arange(6), 0)
    return make_captioner(request.param), Batch(random_images(6, seed=1), target, np.arange(6), 0)


def copy_to(model: Model, device: torch.device) -> Model:
    return copy_with_fast_parts(model, device.type).to(device)


def gradients(model: Model, batch: Batch, device: torch.device, precision: str = "fp32") -> tuple[float, list[Tensor]]:
    with without_tf32():
        with autocast(device, precision):
            loss = TrainingLoss(model, 0.1).to(device)(batch.to(device))
        loss.total.backward()
    weight_gradients = [weight.grad.cpu() for weight in model.parameters() if weight.grad is not None]
    return float(loss.total.detach()), weight_gradients


def test_losses_and_gradients_match_the_cpu(case: tuple[Model, Batch], device: torch.device) -> None:
    model, batch = case
    loss, actual = gradients(copy_to(model, device), batch, device)
    cpu_loss, expected = gradients(model, batch, CPU)
    assert loss == pytest.approx(cpu_loss, rel=1e-4)
    for gradient, cpu_gradient in zip(actual, expected, strict=True):
        assert torch.allclose(gradient, cpu_gradient, rtol=1e-3, atol=1e-4 * float(cpu_gradient.abs().max()) + 1e-6)


def test_bfloat16_is_close_to_full_precision(case: tuple[Model, Batch], device: torch.device) -> None:
    compare_with_full_precision(*case, device, "bf16")


@pytest.mark.gpu
def test_float16_is_close_to_full_precision(case: tuple[Model, Batch]) -> None:
    """A CPU computes in bf16 only (`runtime.precision.check_precision`)."""
    compare_with_full_precision(*case, device_or_skip("cuda"), "fp16")


def compare_with_full_precision(model: Model, batch: Batch, device: torch.device, precision: str) -> None:
    loss, actual = gradients(copy_to(model, device), batch, device, precision)
    cpu_loss, expected = gradients(model, batch, CPU)
    assert loss == pytest.approx(cpu_loss, rel=0.03)
    directions = [torch.cat([gradient.float().flatten() for gradient in gradients]) for gradients in (actual, expected)]
    assert torch.cosine_similarity(*directions, dim=0) > 0.97


def decode_on(model: Model, batch: Batch, device: torch.device, **settings: Any) -> list[list[Hypothesis]]:
    default_settings = {field.name: defaults("decoding")[field.name] for field in fields(DecodeSettings)}
    decode_settings = DecodeSettings(**default_settings | {"max_length": 12, "precision": "fp32"} | settings)
    rows = range(len(batch.indices))
    if model.task == "translation":
        sources = encoded_sentences(
            [row[: length - 1].tolist() for row, length in zip(*vars(batch.source).values(), strict=True)]
        )
    else:
        sources = Sources(rows, lambda numbers: Annotations(batch.source.values[list(numbers)]))
    decoder = optimise_for_decoding(copy_to(model, device), "fp32", device)
    with without_tf32():
        return decode(decoder, sources, decode_settings, device=device, keep_attention=True)


@pytest.mark.parametrize(
    "settings",
    [{"beam": 1, "n_best": 1}, {"beam": 4, "n_best": 3}, {"sample": True, "n_best": 3}],
    ids=["greedy", "beam", "sample"],
)
def test_decoding_matches_the_cpu(case: tuple[Model, Batch], device: torch.device, settings: dict[str, Any]) -> None:
    """Samples match, too, since their random numbers are made on the CPU."""
    model, batch = case
    actual, expected = (decode_on(model, batch, processor, **settings) for processor in (device, CPU))
    for n_best, cpu_n_best in zip(actual, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in n_best] == [hypothesis.tokens for hypothesis in cpu_n_best]
        for h, cpu_h in zip(n_best, cpu_n_best, strict=True):
            assert h.log_probability == pytest.approx(cpu_h.log_probability, rel=1e-3, abs=1e-4)
            if cpu_h.attention is not None:
                assert h.attention is not None and torch.allclose(h.attention, cpu_h.attention, atol=1e-4)


def hard_attention_model(device: torch.device) -> ShowAttendTell:
    model = copy_to(make_captioner("show_attend_tell-hard"), device)
    assert isinstance(model, ShowAttendTell)
    return model


def test_hard_attention_draws_the_same_locations_as_the_cpu(device: torch.device) -> None:
    images, target = random_images(4, seed=1), make_target(random_sentences(4, seed=2))[:, :-1]
    noise = torch.rand(12, target.shape[1], generator=torch.Generator().manual_seed(3))

    def draw_locations(device: torch.device) -> DrawnLocations | None:
        model, rows = hard_attention_model(device), Rows.with_noise(4, noise.to(device))
        return model.forward_rows(images.to(device), target.to(device), rows).sampled

    actual, expected = draw_locations(device), draw_locations(CPU)
    assert actual is not None and expected is not None
    assert torch.allclose(actual.log_probability.cpu(), expected.log_probability, rtol=1e-3, atol=1e-3)
    assert torch.allclose(actual.entropy.cpu(), expected.entropy, rtol=1e-3, atol=1e-3)


def test_hard_attention_draws_depend_on_the_seed_alone(device: torch.device) -> None:
    """The same seed gives the same random numbers, and locations drawn with them have the right distribution."""

    def draw(seed: int) -> Rows:
        torch.manual_seed(seed)
        return Rows.draw(200, 50, 4, 0.0, device)

    first, repeated, other_seed = (draw(seed).uniform_noise for seed in (1, 1, 2))
    assert torch.equal(first, repeated) and not torch.equal(first, other_seed)
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2], device=device)
    noise = first.flatten()
    share = categorical(probabilities.expand(len(noise), -1), noise).bincount(minlength=4) / len(noise)
    assert torch.allclose(share, probabilities, atol=4 * 0.5 / len(noise) ** 0.5) and share[1] == 0


def test_pinning_a_batch_keeps_its_values(device: torch.device) -> None:
    batch = Batch(make_source(random_sentences(3, seed=1)), make_target(random_sentences(3, seed=2)), np.arange(3), 9)
    pinned_batch = (batch.pinned() if device.type == "cuda" else batch).to(device)
    assert torch.equal(pinned_batch.target.cpu(), batch.target) and pinned_batch.tokens == batch.tokens
    assert torch.equal(pinned_batch.source.tokens.cpu(), batch.source.tokens)


SMALL_TRAINING = [
    *("data.processes=1", "data.vocabulary.kind=word", "data.vocabulary.minimum_count=1", "threads=1"),
    *("model.embedding=8", "train.minutes=null", "train.batch_size=4", "train.validate_every=2", "train.steps=4"),
    *("validation.beam=2", "validation.max_length=4", "validation.sentences=2"),
]
TRANSLATION_DATA = ["data=parallel", "data.train=train.tsv", "data.valid=valid.tsv"]
CAPTIONING_DATA = [
    *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model.encoder.size=32"),
    *("model.encoder.fine_tune_from=2", "model.hidden=12"),
]
SHOW_ATTEND_TELL = [*CAPTIONING_DATA, "model=show_attend_tell", "model.alignment=8"]
SETTINGS = {
    "sutskever": [*TRANSLATION_DATA, "model=sutskever", "model.hidden=12", "model.summary=mean"],
    "bahdanau": [*TRANSLATION_DATA, "model=bahdanau", "model.encoder_hidden=8", "model.decoder_hidden=12"],
    "luong": [*TRANSLATION_DATA, "model=luong", "model.hidden=12"],
    "show_tell": [*CAPTIONING_DATA, "model=show_tell", "model.context=initial_state"],
    "soft": [*SHOW_ATTEND_TELL, "model.attention=soft"],
    "hard": [*SHOW_ATTEND_TELL, "model.attention=hard"],
}
CASES = [pytest.param("cpu", "luong"), *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in SETTINGS)]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with sentences to reverse, and pictures of a single colour; it is the current directory."""
    for name, count in (("train", 40), ("valid", 6)):
        rows = [["abcdefghijk"[token % VOCABULARY] for token in row] for row in random_sentences(count, seed=count)]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    (tmp_path / "photos").mkdir()
    with (tmp_path / "photos" / "captions.jsonl").open("w") as file:
        for number in range(12):
            colour = np.array([number % 2, number // 2 % 2, number // 4 % 2])
            Image.fromarray(np.full((16, 16, 3), 200 * colour, np.uint8)).save(tmp_path / f"photos/{number}.png")
            caption = " ".join(f"{'much' if lit else 'no'} {name}" for lit, name in zip(colour, "rgb", strict=True))
            file.write(json.dumps({"file": f"{number}.png", "captions": [caption]}) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str) -> None:
    with without_tf32():
        assert cli.run(["train", *settings], config_directory()) == 0


def load_weights(run: str) -> dict[str, Tensor]:
    return load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors")


def validation_losses(run: str) -> list[float]:
    lines = (Path("runs") / run / "metrics.jsonl").read_text().splitlines()
    return [record["valid_loss"] for line in lines if "valid_loss" in (record := json.loads(line))]


def weight_difference(run: str, other_run: str) -> float:
    weights, other_weights = load_weights(run), load_weights(other_run)
    return max(float((weights[name].double() - other_weights[name].double()).abs().max()) for name in weights)


@pytest.mark.parametrize(("name", "family"), CASES)
def test_training_losses_match_the_cpu(workspace: Path, name: str, family: str) -> None:
    """Dropout and augmentation are off, since each device draws its own random numbers. Hard attention draws some all
    the same, and mixed precision is less exact (fp16 may skip the first steps), so their losses may differ by 30 %.
    """
    device = device_or_skip(name)
    settings = [*SETTINGS[family], *SMALL_TRAINING, "model.dropout=0"]
    if family not in ("sutskever", "bahdanau", "luong"):
        settings.append("model.encoder.augment=false")
    train(*settings, "device=cpu", "run=here")
    assert len(validation_losses("here")) == 2
    mixed = ("bf16", "fp16") if device.type == "cuda" else ("bf16",)
    for precision in ("fp32", *(mixed if family in ("luong", "hard") else ())):
        train(*settings, f"device={device}", f"precision={precision}", f"run={precision}")
        tolerance = 1e-3 if precision == "fp32" and family != "hard" else 0.3
        assert validation_losses(precision) == pytest.approx(validation_losses("here"), rel=tolerance)


@pytest.mark.parametrize(("name", "family"), [case for case in CASES if case.values[1] in ("luong", "hard")])
def test_resumed_runs_and_repeated_seeds_give_equal_weights(workspace: Path, name: str, family: str) -> None:
    """With dropout, a resumed run ends like an uninterrupted run, and another seed gives other weights. A GPU sums some
    gradients in no fixed order, so that the last digits may differ there.
    """
    device = device_or_skip(name)
    settings = [*SETTINGS[family], *SMALL_TRAINING, "model.dropout=0.3", f"device={device}"]
    train(*settings, "run=whole")
    train(*settings, "run=parts", "train.steps=3")
    train("run=parts", "train.resume=true", "train.steps=4")
    train(*settings, "run=again")
    train(*settings, "run=other", "seed=7", "train.steps=2")
    tolerance = 0.0 if device.type == "cpu" else 1e-3
    assert weight_difference("whole", "parts") <= tolerance and weight_difference("whole", "again") <= tolerance
    assert weight_difference("whole", "other") > 1e-2
