"""A GPU gives what the CPU gives. Some of the bodies run on the CPU, too, so that they hold wherever they run.

bash scripts/test.sh -m gpu; where there is no GPU, one is pretended (pretended_gpu.py).
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
    make_captioner,
    make_model,
    of_fast_parts,
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
from seqtool.runtime.defaults import defaults
from seqtool.runtime.files import config_directory
from seqtool.runtime.precision import autocast, without_tf32
from seqtool.training import checkpoint
from seqtool.training.losses import TrainingLoss

Model = EncoderDecoder[Any]
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
CPU = torch.device("cpu")
TEXT = [
    *("bahdanau-gru", "bahdanau-gru_cho", "bahdanau-deep", "luong", "sutskever-lstm", "sutskever-rnn"),
    *("sutskever-every_step-last", "sutskever-both-mean", "sutskever-initial_state-max"),
    *("transformer", "transformer-post"),
]
IMAGES = [
    "transformer-captioner",
    "show_tell-first_step",
    "show_tell-both-max",
    "show_tell-gru",
    "show_attend_tell-soft",
    "show_attend_tell-hard",
]


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return there(request.param)


def there(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here: torch.cuda.is_available() is false")
    return torch.device(name)


@pytest.fixture(params=[*TEXT, *IMAGES])
def case(request: pytest.FixtureRequest) -> tuple[Model, Batch]:
    """A model of each family, and a batch of sentences or captions of different lengths."""
    target = make_target(random_sentences(6, seed=2))
    if request.param in MODELS:
        return make_model(request.param), Batch(make_source(random_sentences(6, seed=1)), target, np.arange(6), 0)
    return make_captioner(request.param), Batch(random_images(6, seed=1), target, np.arange(6), 0)


def on(model: Model, device: torch.device) -> Model:
    return of_fast_parts(model, device.type).to(device)


def gradients(model: Model, batch: Batch, device: torch.device, precision: str = "fp32") -> tuple[float, list[Tensor]]:
    with without_tf32():
        with autocast(device, precision):
            loss = TrainingLoss(model, 0.1).to(device)(batch.to(device))
        loss.total.backward()
    return float(loss.total.detach()), [one.grad.cpu() for one in model.parameters() if one.grad is not None]


def test_losses_and_gradients_are_the_cpus(case: tuple[Model, Batch], device: torch.device) -> None:
    model, batch = case
    loss, found = gradients(on(model, device), batch, device)
    plain, expected = gradients(model, batch, CPU)
    assert loss == pytest.approx(plain, rel=1e-4)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()) + 1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_is_near_to_the_full_one(
    case: tuple[Model, Batch], device: torch.device, precision: str
) -> None:
    if device.type == "cpu" and precision == "fp16":
        pytest.skip("a CPU is asked for bf16 only (runtime.precision.check_precision)")
    model, batch = case
    loss, found = gradients(on(model, device), batch, device, precision)
    plain, expected = gradients(model, batch, CPU)
    assert loss == pytest.approx(plain, rel=0.03)
    one, other = (torch.cat([gradient.float().flatten() for gradient in each]) for each in (found, expected))
    assert torch.cosine_similarity(one, other, dim=0) > 0.97


def decoded(model: Model, batch: Batch, device: torch.device, **settings: Any) -> list[list[Hypothesis]]:
    known = {one.name: defaults("decoding")[one.name] for one in fields(DecodeSettings)}
    asked = DecodeSettings(**known | {"max_length": 12, "precision": "fp32"} | settings)
    rows = range(len(batch.indices))
    if model.task == "translation":
        sources = encoded_sentences(
            [row[: n - 1].tolist() for row, n in zip(*vars(batch.source).values(), strict=True)]
        )
    else:
        sources = Sources(rows, lambda chosen: Annotations(batch.source.values[list(chosen)]))
    decoder = optimise_for_decoding(on(model, device), "fp32", device)
    with without_tf32():
        return decode(decoder, sources, asked, device=device, keep_attention=True)


@pytest.mark.parametrize(
    "settings",
    [{"beam": 1, "n_best": 1}, {"beam": 4, "n_best": 3}, {"sample": True, "n_best": 3}],
    ids=["greedy", "beam", "sample"],
)
def test_decoding_is_the_cpus(case: tuple[Model, Batch], device: torch.device, settings: dict[str, Any]) -> None:
    """Samples too: their random numbers are made on the CPU."""
    model, batch = case
    found, expected = (decoded(model, batch, one, **settings) for one in (device, CPU))
    for some, others in zip(found, expected, strict=True):
        assert [one.tokens for one in some] == [one.tokens for one in others]
        for one, other in zip(some, others, strict=True):
            assert one.log_probability == pytest.approx(other.log_probability, rel=1e-3, abs=1e-4)
            if other.attention is not None:
                assert one.attention is not None and torch.allclose(one.attention, other.attention, atol=1e-4)


def hard(device: torch.device) -> ShowAttendTell:
    model = on(make_captioner("show_attend_tell-hard"), device)
    assert isinstance(model, ShowAttendTell)
    return model


def test_hard_attention_draws_the_cpus_locations_by_the_same_numbers(device: torch.device) -> None:
    images, target = random_images(4, seed=1), make_target(random_sentences(4, seed=2))[:, :-1]
    noise = torch.rand(12, target.shape[1], generator=torch.Generator().manual_seed(3))

    def sampled(place: torch.device) -> DrawnLocations | None:
        model, rows = hard(place), Rows.with_noise(4, noise.to(place))
        return model.forward_rows(model.annotations(images.to(place)), target.to(place), rows).sampled

    found, expected = sampled(device), sampled(CPU)
    assert found is not None and expected is not None
    assert torch.allclose(found.log_probability.cpu(), expected.log_probability, rtol=1e-3, atol=1e-3)
    assert torch.allclose(found.entropy.cpu(), expected.entropy, rtol=1e-3, atol=1e-3)


def test_hard_attentions_own_numbers_are_the_seeds(device: torch.device) -> None:
    """What is drawn while training depends on the seed alone, and has the right distribution."""

    def draw(seed: int) -> Rows:
        torch.manual_seed(seed)
        return Rows.draw(200, 50, 4, 0.0, device)

    first, again, other = (draw(seed).uniform_noise for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    p = torch.tensor([0.5, 0.0, 0.3, 0.2], device=device)
    noise = first.flatten()
    share = categorical(p.expand(len(noise), -1), noise).bincount(minlength=4) / len(noise)
    assert torch.allclose(share, p, atol=4 * 0.5 / len(noise) ** 0.5) and share[1] == 0


def test_pinned_batches_are_the_same(device: torch.device) -> None:
    batch = Batch(make_source(random_sentences(3, seed=1)), make_target(random_sentences(3, seed=2)), np.arange(3), 9)
    moved = (batch.pinned() if device.type == "cuda" else batch).to(device)
    assert torch.equal(moved.target.cpu(), batch.target) and moved.tokens == batch.tokens
    assert torch.equal(moved.source.tokens.cpu(), batch.source.tokens)


COMMON = [
    *("data.processes=1", "data.vocabulary.kind=word", "data.vocabulary.minimum_count=1", "threads=1"),
    *("model.embedding=8", "train.minutes=null", "train.batch_size=4", "train.validate_every=2", "train.steps=4"),
    *("validation.beam=2", "validation.max_length=6"),
]
PAIRS = ["data=parallel", "data.train=train.tsv", "data.valid=valid.tsv"]
PHOTOS = [
    *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model.encoder.size=32"),
    *("model.encoder.fine_tune_from=2", "model.hidden=12"),
]
SAT = [*PHOTOS, "model=show_attend_tell", "model.alignment=8"]
RUNS = {
    "sutskever": [*PAIRS, "model=sutskever", "model.hidden=12", "model.summary=mean"],
    "bahdanau": [*PAIRS, "model=bahdanau", "model.encoder_hidden=8", "model.decoder_hidden=12"],
    "luong": [*PAIRS, "model=luong", "model.hidden=12"],
    "show_tell": [*PHOTOS, "model=show_tell", "model.context=initial_state"],
    "soft": [*SAT, "model.attention=soft"],
    "hard": [*SAT, "model.attention=hard"],
}
ALL = [pytest.param("cpu", "luong"), *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in RUNS)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with sentences to reverse, and pictures of one colour."""
    for name, count in (("train", 40), ("valid", 6)):
        rows = [["abcdefghijk"[token % VOCABULARY] for token in row] for row in random_sentences(count, seed=count)]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    (tmp_path / "photos").mkdir()
    with (tmp_path / "photos" / "captions.jsonl").open("w") as file:
        for number in range(12):
            colour = np.array([number % 2, number // 2 % 2, number // 4 % 2])
            Image.fromarray(np.full((16, 16, 3), 200 * colour, np.uint8)).save(tmp_path / f"photos/{number}.png")
            caption = " ".join(f"{'much' if part else 'no'} {name}" for part, name in zip(colour, "rgb", strict=True))
            file.write(json.dumps({"file": f"{number}.png", "captions": [caption]}) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str) -> None:
    with without_tf32():
        assert cli.run(["train", *settings], config_directory()) == 0


def weights(run: str) -> dict[str, Tensor]:
    return load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors")


def losses(run: str) -> list[float]:
    lines = (Path("runs") / run / "metrics.jsonl").read_text().splitlines()
    return [record["valid_loss"] for line in lines if "valid_loss" in (record := json.loads(line))]


def distance(one: str, other: str) -> float:
    pair = weights(one), weights(other)
    return max(float((pair[0][name].double() - pair[1][name].double()).abs().max()) for name in pair[0])


@pytest.mark.parametrize(("name", "family"), ALL)
def test_training_is_the_cpus(place: Path, name: str, family: str) -> None:
    """A few steps without dropout and augmentation, whose random numbers are each device's own, as are those of hard
    attention; in mixed precision nearly so, and in fp16 with a scaled loss, whose first steps may be skipped.
    """
    device = there(name)
    settings = [*RUNS[family], *COMMON, "model.dropout=0"]
    if family not in ("sutskever", "bahdanau", "luong"):
        settings.append("model.encoder.augment=false")
    train(*settings, "device=cpu", "run=here")
    assert len(losses("here")) == 2
    for precision in ("fp32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16"):
        train(*settings, f"device={device}", f"precision={precision}", f"run={precision}")
        tolerance = 1e-3 if precision == "fp32" and family != "hard" else 0.3
        assert losses(precision) == pytest.approx(losses("here"), rel=tolerance)


@pytest.mark.parametrize(("name", "family"), [one for one in ALL if one.values[1] in ("luong", "bahdanau", "hard")])
def test_resuming_and_seeds(place: Path, name: str, family: str) -> None:
    """With dropout: what goes on is what had not stopped, and another seed is another run. A GPU sums some gradients in
    no fixed order, so that the last digits may differ.
    """
    device = there(name)
    settings = [*RUNS[family], *COMMON, "model.dropout=0.3", f"device={device}"]
    train(*settings, "run=whole")
    train(*settings, "run=parts", "train.steps=3")
    train("run=parts", "train.resume=true", "train.steps=4")
    train(*settings, "run=again")
    train(*settings, "run=other", "seed=7", "train.steps=2")
    most = 0.0 if device.type == "cpu" else 1e-3
    assert distance("whole", "parts") <= most and distance("whole", "again") <= most
    assert distance("whole", "other") > 1e-2
