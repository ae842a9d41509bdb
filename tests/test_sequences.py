"""Tests of training on sequences: its gradient is that of the expected reward, and rewards are the scores of `eval`."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import (
    ENCODER,
    LUONG,
    SHOW_ATTEND_TELL,
    TRANSFORMER,
    WORDS,
    make_captioner,
    make_model,
    random_images,
    random_sentences,
)
from torch import Tensor

from seqtool.cli import main as cli
from seqtool.data.batches import Batch, make_source, make_target, shared
from seqtool.data.images.image_store import prepare_captions
from seqtool.data.preparation import prepare_pairs
from seqtool.decoding.common import Hypothesis
from seqtool.errors import InputError
from seqtool.metrics import scores
from seqtool.metrics.scores import Scorer, parse_sum
from seqtool.models.backbone import EncoderSettings
from seqtool.models.inputs import Annotations, Pixels
from seqtool.models.luong import Luong
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.models.transformer import Transformer
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory
from seqtool.tasks.captioning import Captioning
from seqtool.tasks.translation import Translation
from seqtool.training import sequences
from seqtool.training.losses import TrainingLoss
from seqtool.training.saving import TrainSettings
from seqtool.training.scheduled_sampling import Teacher, random_numbers
from seqtool.training.sequences import Rewards, SequenceLoss, check


class Count(Scorer):
    """Rewards 3 for every 4, 1 for every 5, and 2 for the end."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        self.references = references

    def statistics(self, hypotheses: Sequence[str]) -> Any:
        return np.array(
            [[3 * text.count("4") + text.count("5") + 2 * text.count(sequences.END)] for text in hypotheses]
        )

    def scores(self, statistics: Any) -> dict[str, float]:
        return {"mine.Count": float(statistics.mean())}

    def signature(self, *, samples: int | None = None) -> str:
        return ""


@pytest.fixture(autouse=True)
def count_is_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "higher_is_better", lambda name: True)


def texts(ids: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, row)) for row in ids]


COUNTS = Rewards({"mine.Count": 1.0}, lambda source: [""], texts, lambda references: [Count(references)])


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{**defaults("train")["train"], "objective": "sequence", **changes})


def only_words(model: Any) -> Any:
    """Make PAD, UNK and BOS impossible, so that sequences of words and the end can be enumerated."""
    with torch.no_grad():
        model.output.bias[[PAD, UNK, BOS]] = -60.0
    return model


def translator() -> Any:
    torch.manual_seed(3)
    model = Luong(**LUONG | {"target_vocabulary": 6, "hidden": 4, "layers": 1, "embedding": 2, "alignment": 2}).double()
    return only_words(model).train()


def captioner(**changes: Any) -> Any:
    torch.manual_seed(5)
    hard = {"attention": "hard", "samples": 2, "doubly_stochastic": 0.0, "entropy": 0.0, "target_vocabulary": 6}
    sizes = {"hidden": 3, "embedding": 2, "alignment": 2}
    model = ShowAttendTell(**SHOW_ATTEND_TELL | hard | sizes | changes).double()
    return only_words(model).train()


def batch_of(sources: Any, targets: Sequence[Sequence[int]]) -> Batch:
    return Batch(sources, make_target(targets), np.arange(len(targets)), sum(len(ids) + 1 for ids in targets))


SENTENCE = batch_of(make_source([[4, 7, 5]]), [[4]])
PICTURE = batch_of(Annotations(torch.randn(1, 3, 96, generator=torch.Generator().manual_seed(0)).half()), [[4]])


def gradient(model: Any, total: Tensor) -> Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def estimates(model: Any, batch: Batch, count: int, **changes: Any) -> Tensor:
    """The gradient of each of `count` updates."""
    loss = SequenceLoss(model, settings(**changes), COUNTS, seed=1).double()
    results = []
    for loss.update in range(count):
        results.append(gradient(model, loss(batch).total))
    return torch.stack(results)


@torch.no_grad()
def write(loss: SequenceLoss, source: Any, rows: Sequence[int], limits: list[int]) -> Any:
    """The samples that the loss draws for these sources, whose indices are `rows`."""
    return loss._write(loss.model.eval().encode(source), np.array(rows), limits)


def written(length: int) -> list[tuple[list[int], bool]]:
    """All sequences of 4 and 5 that end within `length` tokens, or are cut off there."""
    words = [list(ids) for n in range(length + 1) for ids in itertools.product((4, 5), repeat=n)]
    return [(ids, len(ids) < length) for ids in words]


def reward_of(ids: Sequence[int], ended: bool) -> float:
    return 3 * ids.count(4) + ids.count(5) + 2 * ended


def expected_reward(model: Any, batch: Batch, length: int) -> Tensor:
    """Σ_y p(y | x) r(y), by enumeration."""
    ids, ends = zip(*written(length), strict=True)
    target = make_target(ids)
    for row, tokens, ended in zip(target, ids, ends, strict=True):
        row[len(tokens) + 1] *= ended
    rows = torch.zeros(len(ids), dtype=torch.int64)
    source = (
        make_source([[4, 7, 5]] * len(ids)) if not hasattr(batch.source, "rows") else replace(batch.source, rows=rows)
    )
    labels = target[:, 1:]
    nll = model.parts.cross_entropy(model(source, target[:, :-1]).features, model.output, labels, 0.0)
    log_p = model.project(model(source, target[:, :-1]).features).log_softmax(-1)
    log_p = (log_p.gather(-1, labels[:, :, None]).squeeze(-1) * (labels != PAD)).sum(1)
    torch.testing.assert_close(-nll.nll.sum(1), log_p.detach())
    assert float(log_p.detach().exp().sum()) == pytest.approx(1, abs=1e-12)
    return (log_p.exp() * torch.tensor([reward_of(*pair) for pair in written(length)])).sum()


def joint_log_p(model: Any, ids: Sequence[int], ended: bool, places: Sequence[int]) -> Tensor:
    """log p(y, s | x) of the words and locations of a sample of `PICTURE`, its end among the words if it ended."""
    memory, state = model.encode(PICTURE.source)
    log_p, token = torch.zeros((), dtype=torch.float64), torch.tensor([BOS])
    for place, word in zip(places, [*ids, EOS] if ended else ids, strict=False):
        weights = torch.nn.functional.one_hot(torch.tensor([place]), 3).double()
        step = model.step(replace(memory, choose=lambda alpha, noise, w=weights: w), state, token)
        log_p = log_p + step.attention[0, place].log() + step.logits.log_softmax(-1)[0, word]
        state, token = step.state, torch.tensor([word])
    return log_p


@pytest.mark.parametrize("baseline", ["leave_one_out", "greedy"])
def test_the_gradient_averages_to_that_of_the_expected_reward(baseline: str) -> None:
    model = translator()
    exact = -gradient(model, expected_reward(model, SENTENCE, 2 * 2 + 5))
    samples = estimates(model, SENTENCE, 40, samples=64, baseline=baseline)
    error = (samples.mean(0) - exact) / (samples.std(0) / len(samples) ** 0.5).clamp_min(1e-12)
    assert exact.norm() > 1 and (samples.mean(0) - exact).norm() < 0.2 * exact.norm()
    assert float((error.abs() < 4).float().mean()) > 0.99


def test_hard_attention_learns_where_to_look_from_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient averages to that of the reward that is expected over words and locations."""
    model = captioner()
    monkeypatch.setattr(sequences, "limit_of", lambda longest: 2)
    expected = torch.zeros((), dtype=torch.float64)
    for places in itertools.product(range(3), repeat=2):
        for ids, ended in written(2):
            log_p = joint_log_p(model, ids, ended, places)
            repeats = 3 if ids == [] else 1  # a sequence that ends at once has no second location
            expected = expected + log_p.exp() * reward_of(ids, ended) / repeats
    exact = -gradient(model, expected)
    samples = estimates(model, PICTURE, 40, samples=64)
    error = (samples.mean(0) - exact) / (samples.std(0) / len(samples) ** 0.5).clamp_min(1e-12)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    parts = dict(zip(names, exact.split(sizes), strict=True))
    assert max(parts[name].norm() for name in names if name.startswith("score.")) > 0.01  # only locations depend on it
    assert (samples.mean(0) - exact).norm() < 0.2 * exact.norm()
    assert float((error.abs() < 4).float().mean()) > 0.99


def test_a_share_of_the_images_takes_the_expected_context_as_with_soft_attention() -> None:
    """Images that draw locations and those that do not have the losses that they have alone, also in one batch."""
    hard, soft = captioner(soft_share=1.0), captioner(attention="soft")
    expected, drawn = (estimates(model, PICTURE, 8, samples=6) for model in (hard, captioner()))
    torch.testing.assert_close(expected, estimates(soft, PICTURE, 8, samples=6))
    mixed = estimates(captioner(soft_share=0.5), PICTURE, 8, samples=6)
    is_soft = (mixed - expected).abs().amax(1) < (mixed - drawn).abs().amax(1)
    assert 0 < is_soft.sum() < 8
    torch.testing.assert_close(mixed, torch.where(is_soft[:, None], expected, drawn))
    images, captions = random_images(6, seed=0), random_sentences(6, seed=2)
    model = captioner(soft_share=0.5)
    loss = SequenceLoss(model, settings(samples=3), replace(COUNTS, references=str), seed=1).double()
    whole = gradient(model, loss(batch_of(images, captions)).total)
    for i, caption in enumerate(captions):
        alone = batch_of(replace(images, values=images.values[i : i + 1]), [caption])
        whole = whole - gradient(model, loss(replace(alone, indices=np.array([i]))).total)
    torch.testing.assert_close(whole, torch.zeros_like(whole), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "words, trained, with_dropout",
    [
        ("leave_one_out", True, [False, True]),
        ("leave_one_out", False, [False]),
        ("greedy", True, [False, True]),
        ("scheduled", True, [False, True]),
    ],
)
def test_a_picture_is_the_same_for_its_samples_and_for_their_probabilities(
    words: str, trained: bool, with_dropout: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read no more often than it must be, for the share of cross-entropy as well, and for samples without
    dropout.
    """
    model = captioner(attention="soft", encoder=EncoderSettings(**ENCODER | {"fine_tune_from": 0, "augment": True}))
    model.backbone.requires_grad_(trained)
    read, modes, network = [], [], model.backbone.forward
    monkeypatch.setattr(
        model.backbone, "forward", lambda x: (read.append(x), modes.append(model.backbone.training), network(x))[2]
    )
    pictures = Pixels(torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8))
    batch = batch_of(pictures, [[4], [5]])
    if words == "scheduled":
        TrainingLoss(model, 0.0, Teacher("linear", 0.5, 0.0, 0.0, seed=1)).double()(batch)
    else:
        SequenceLoss(model, settings(baseline=words, cross_entropy=0.5), COUNTS, seed=1).double()(batch)
    assert modes == with_dropout and model.training
    assert all(torch.equal(x, read[0]) for x in read) and not torch.equal(read[0], pictures.values.to(read[0].dtype))


def test_leave_one_out_varies_less_than_the_greedy_baseline() -> None:
    model = translator()
    variances = [
        estimates(model, SENTENCE, 40, samples=4, baseline=name).var(0).sum() for name in ("leave_one_out", "greedy")
    ]
    assert variances[0] < 0.9 * variances[1]


def test_risk_has_the_gradient_of_minus_the_reward_under_q() -> None:
    """q ∝ p^α over samples that differ, the reference among them."""
    model = translator()
    changes: dict[str, Any] = {"baseline": "risk", "risk_alpha": 0.3, "risk_reference": True, "samples": 6}
    loss = SequenceLoss(model, settings(**changes), COUNTS, seed=1).double()
    result = loss(SENTENCE)
    (row,) = write(loss, SENTENCE.source, [0], [9])
    different = list({(tuple(sample.tokens), sample.ended) for sample in row} | {((4,), True)})
    assert len(different) > 2
    log_ps, rewards = [], []
    for ids, ended in different:
        tokens = torch.tensor([[BOS, *ids, *[EOS] * ended]])
        log_p = model.project(model(SENTENCE.source, tokens[:, :-1]).features).log_softmax(-1)
        log_ps.append(log_p.gather(-1, tokens[:, 1:, None]).sum())
        rewards.append(reward_of(ids, ended))
    q = (0.3 * torch.stack(log_ps)).softmax(0)
    exact = gradient(model, -(q * torch.tensor(rewards)).sum())
    torch.testing.assert_close(gradient(model, result.total), exact)


def test_risk_of_hard_attention_is_over_words_and_locations(monkeypatch: pytest.MonkeyPatch) -> None:
    """q ∝ p(y, s)^α over samples that differ in words or in locations."""
    model = captioner()
    monkeypatch.setattr(sequences, "limit_of", lambda longest: 2)
    loss = SequenceLoss(model, settings(baseline="risk", risk_alpha=0.3, samples=24), COUNTS, seed=1).double()
    result = loss(PICTURE)
    (row,) = write(loss, PICTURE.source, [0], [2])
    different = {(tuple(sample.tokens), sample.ended, tuple(sample.locations)) for sample in row}
    assert len({key[:2] for key in different}) < len(different) < len(row)
    q = (0.3 * torch.stack([joint_log_p(model, *key) for key in different])).softmax(0)
    rewards = torch.tensor([reward_of(ids, ended) for ids, ended, _ in different])
    exact = gradient(model, -(q * rewards).sum())
    torch.testing.assert_close(gradient(model, result.total), exact)


@pytest.mark.parametrize("baseline", ["greedy", "risk"])
@pytest.mark.parametrize("name", ["luong", "bahdanau-gru", "transformer", "show_attend_tell-hard"])
def test_mixed_precision_trains_what_single_precision_trains(name: str, baseline: str) -> None:
    """Torch before 2.11 gave no gradient to matrices that a pass without gradients had rounded."""
    is_captioner = name.startswith("show")
    model = only_words((make_captioner if is_captioner else make_model)(name)).train()
    if is_captioner:
        model.penalties = replace(model.penalties, baseline="none")
    teacher = settings(samples=2, baseline=baseline, cross_entropy=0.5, teacher="linear", teacher_k=0.0)
    loss = SequenceLoss(model, teacher, COUNTS, seed=1)
    source = random_images(2, seed=0) if is_captioner else make_source(random_sentences(2, seed=1))
    batch = batch_of(source, random_sentences(2, seed=2))

    def trained(is_mixed: bool) -> set[str]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            total = loss(batch).total
        total.backward()
        return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}

    assert trained(True) == trained(False)


def test_draws_depend_on_seed_update_example_and_number_alone() -> None:
    """Neither on the batch's other sources nor on their order nor on padding."""
    model = only_words(make_model("transformer", scale=1.0)).train()
    loss = SequenceLoss(model, settings(samples=3), COUNTS, seed=1)
    sources = random_sentences(4, seed=1)

    def tokens(rows: Sequence[int], update: int = 0) -> dict[int, list[list[int]]]:
        loss.update = update
        source = make_source([sources[i] for i in rows])
        written = write(loss, source, rows, [5 + i for i in rows])
        return {i: [sample.tokens for sample in row] for i, row in zip(rows, written, strict=True)}

    together, alone = tokens([0, 1, 2, 3]), {i: tokens([i])[i] for i in range(4)}
    assert together == alone == tokens([3, 1, 0, 2]) and len({str(row) for row in together.values()}) == 4
    assert tokens([0, 1, 2, 3], update=1) != together
    fewer = random_numbers(1, 2, [7], 0, 3)
    assert torch.equal(fewer, random_numbers(1, 2, [5, 7], 0, 9)[1:, :3]) and not torch.equal(
        fewer, random_numbers(1, 2, [7], 1, 3)
    )


@pytest.mark.parametrize("captions", [[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 1, 1]])
@pytest.mark.parametrize("trained", [True, False])
def test_a_share_of_cross_entropy_is_that_of_each_caption(captions: list[int], trained: bool) -> None:
    model = captioner(attention="soft", encoder=EncoderSettings(**ENCODER | {"fine_tune_from": 0}))
    model.backbone.requires_grad_(trained)
    pictures = Pixels(torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8))
    batch = batch_of(shared(pictures, np.array(captions)), [[4], [5, 4], [5], [4, 4, 5]])
    rewards = replace(COUNTS, references=str, source_of=np.array(captions))
    mixed, rewarded = (
        SequenceLoss(model, settings(samples=2, cross_entropy=share), rewards, seed=1).double()(batch).total
        for share in (0.25, 0.0)
    )
    words = TrainingLoss(model, 0.0).double().train()(batch).total
    torch.testing.assert_close(mixed, 0.75 * rewarded + 0.25 * words)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_batch_is_the_sum_of_its_parts(share: float) -> None:
    """As for processes that share a batch. With a share of cross-entropy the two losses are mixed."""
    model = only_words(make_model("luong")).double().train()
    loss = SequenceLoss(model, settings(samples=3, cross_entropy=share), COUNTS, seed=1).double()
    batch = batch_of(make_source(random_sentences(5, seed=1)), random_sentences(5, seed=2))

    def part(rows: list[int]) -> Batch:
        source = replace(batch.source, tokens=batch.source.tokens[rows], lengths=batch.source.lengths[rows])
        return replace(batch, source=source, target=batch.target[rows], indices=batch.indices[rows])

    whole = gradient(model, loss(batch).total)
    torch.testing.assert_close(
        whole, gradient(model, loss(part([0, 2, 4])).total) + gradient(model, loss(part([1, 3])).total)
    )
    if share:
        loss.settings = settings(samples=3)
        words = gradient(model, TrainingLoss(model, 0.0).double().train()(batch).total)
        torch.testing.assert_close(whole, 0.75 * gradient(model, loss(batch).total) + 0.25 * words)


def test_samples_that_do_not_end_fit_the_learnt_positions() -> None:
    sizes = {"positions": "learnt", "longest": 8, "encoder_layers": 1, "decoder_layers": 1}
    model = only_words(Transformer(**WORDS | TRANSFORMER | sizes)).train()
    with torch.no_grad():
        model.output.bias[EOS] = -60.0
    loss = SequenceLoss(model, settings(samples=2), COUNTS, seed=1)
    assert {len(sample.tokens) for sample in write(loss, SENTENCE.source, [0], [8])[0]} == {8}
    assert loss(batch_of(SENTENCE.source, [[4, 5, 6, 7]])).total.isfinite()


def test_unknown_words_are_not_rewarded(tmp_path: Path) -> None:
    """`eval` compares with the reference itself, which has no ⁇."""
    (tmp_path / "train.tsv").write_text("a a\tx x y z\n" * 3)
    usual, file = defaults("preparation"), str(tmp_path / "train.tsv")
    sides = {"source_language": "en", "target_language": "es", "train": file, "valid": file, "test": None}
    settings_of_data = {"_target_": "seqtool.data.corpora.parallel.ParallelFiles", "cache": str(tmp_path / "cache")}
    vocabulary = {**usual["vocabulary"], "kind": "word", "minimum_count": 4}
    cache = prepare_pairs({**usual, **settings_of_data, **sides, "vocabulary": vocabulary, "processes": 1})
    ids = cache.split("train").target(0).tolist()
    assert ids.count(UNK) == 2
    rewards = Translation().rewards(cache, settings(reward="bleu", reward_end=False), "13a")
    known = [i for i in ids if i != UNK]
    with_unknown, without = rewards(
        np.arange(1), [[Hypothesis(tokens, 0.0, 0.0, None, True) for tokens in (ids, known)]]
    )[0].tolist()
    assert with_unknown < 0.7 < without + 0.5


def write_photos(directory: Path) -> str:
    """Write three photos with a caption each, and return the file of captions."""
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(directory / f"{number}.png")
    (directory / "captions.txt").write_text("".join(f"{number}.png\ta red cat sits\n" for number in range(3)))
    return str(directory / "captions.txt")


def test_refused_rewards_leave_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that the corrected command can have the same name."""
    monkeypatch.chdir(tmp_path)
    file = write_photos(tmp_path)
    train = [
        "data=photos",
        "data.directory=.",
        f"data.train={file}",
        f"data.valid={file}",
        "data.vocabulary.minimum_count=1",
        "run=hard",
    ]
    model = ["model=show_attend_tell", "model.attention=hard", "model.encoder.backbone=small", "model.encoder.size=16"]
    rewards = ["train.objective=sequence", "train.cross_entropy=0.2", "device=cpu", "threads=1"]
    assert cli.run(["train", *train, *model, "model.encoder.weights=null", *rewards], config_directory()) == 2
    assert "needs model.baseline=leave_one_out" in capsys.readouterr().err
    assert not Path("runs/hard").exists()


def test_unknown_words_of_captions_are_not_rewarded(tmp_path: Path) -> None:
    """The tokenisers drop ⁇, so that it would cost nothing."""
    file = write_photos(tmp_path)
    corpus = {"_target_": "seqtool.data.corpora.photos.Photos", "directory": str(tmp_path)}
    files = {"train": file, "valid": file, "test": None, "valid_share": 0, "test_share": 0}
    usual = {**defaults("caption_preparation"), "cache": str(tmp_path / "cache"), "processes": 1}
    usual["vocabulary"]["minimum_count"] = 1
    encoder = EncoderSettings(
        backbone="small", layer=None, weights=None, size=16, fit="squash", fine_tune_from=None, lr=0.1, augment=False
    )
    cache = prepare_captions({**usual, **corpus, **files}, encoder, device=torch.device("cpu"))
    ids = cache.target_vocabulary.encode("a red cat sits")
    rewards = Captioning().rewards(cache, settings(reward="bleu1"), "ptb")
    hypotheses = [Hypothesis(tokens, 0.0, 0.0, None, True) for tokens in (ids, [*ids[:1], UNK, *ids[1:]])]
    without, with_unknown = rewards(np.arange(1), [hypotheses])[0].tolist()
    assert without == 1 and with_unknown == pytest.approx(5 / 6)


def test_cider_needs_captions_of_two_images(tmp_path: Path) -> None:
    captions = [["a red cat sits", "a cat"]]
    split = SimpleNamespace(references=lambda: captions, image_of=np.zeros(2, np.int64))
    vocabulary = SimpleNamespace(decode=lambda ids: "a cat")
    cache = cast(Any, SimpleNamespace(split=lambda name: split, target_vocabulary=vocabulary))
    with pytest.raises(InputError, match=r"to CIDEr-D all n-grams of a single image have the weight 0\. Add images"):
        Captioning().rewards(cache, settings(), "ptb")
    captions.append(["a dog"])
    assert Captioning().rewards(cache, settings(), "ptb").weights == {"cider_d": 1.0}


def test_captions_of_an_image_are_one_source() -> None:
    """Their samples are compared with all of them, and count once for each."""
    captioner = make_captioner("show_attend_tell-soft").double().train()
    model, images = only_words(captioner), random_images(2, seed=0)
    rows = torch.tensor([0, 0, 0, 1])
    batch = batch_of(replace(images, rows=rows), random_sentences(4, seed=2))
    seen: list[Any] = []

    def references(source: int) -> list[str]:
        seen.append(source)
        return [f"{source}"]

    rewards = replace(COUNTS, references=references, source_of=np.array([5, 5, 5, 8]))
    loss = SequenceLoss(model, settings(samples=2), rewards, seed=1).double()
    whole = gradient(model, loss(batch).total)
    assert seen == [5, 8]

    def one(image: int, caption: list[int], count: int) -> Tensor:
        """The gradient of an image with one caption, the longest, which limits the samples, `count` times."""
        part = batch_of(replace(images, values=images.values[image : image + 1]), [caption])
        return count * gradient(model, loss(replace(part, indices=np.array([3 * image]))).total)

    *captions, last = random_sentences(4, seed=2)
    torch.testing.assert_close(whole, one(0, max(captions, key=len), 3) + one(1, last, 1))
    order = [3, 1, 0, 2]
    mixed = batch_of(replace(images, rows=rows[order]), [[*captions, last][i] for i in order])
    torch.testing.assert_close(whole, gradient(model, loss(replace(mixed, indices=np.array(order))).total))


def test_teachers_share_of_the_words() -> None:
    """Bengio et al. 2015, section 2.4."""
    linear = Teacher("linear", 1.0, 0.01, 0.25, seed=1)
    assert [linear.share(i) for i in (0, 50, 1000)] == [1.0, 0.5, 0.25]
    assert Teacher("exponential", 0.9, 0.0, 0.0, seed=1).share(3) == pytest.approx(0.729)
    sigmoid = Teacher("inverse_sigmoid", 10.0, 0.0, 0.0, seed=1)
    assert Teacher("inverse_sigmoid", 0.0, 0.0, 0.0, seed=1).share(5) == 0
    assert sigmoid.share(0) == pytest.approx(10 / 11) and sigmoid.share(10**9) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["luong", "transformer"])
def test_decoders_read_their_own_words(name: str) -> None:
    model = only_words(make_model(name)).train()
    targets = random_sentences(6, seed=2)
    batch = batch_of(make_source(random_sentences(6, seed=1)), targets)
    assert torch.equal(Teacher("linear", 1.0, 0.0, 0.0, 1).inputs(model, batch, 3), batch.inputs)
    own = Teacher("linear", 0.0, 0.0, 0.0, 1).inputs(model, batch, 3)
    half = Teacher("linear", 0.5, 0.0, 0.0, 1).inputs(model, batch, 3)
    real = (batch.inputs != PAD) & (batch.inputs != BOS)
    assert torch.equal(own[~real], batch.inputs[~real]) and not ((own[real] == EOS) | (own[real] == PAD)).any()
    is_reference = (half == batch.inputs)[real].float().mean()
    assert 0.3 < float(is_reference) < 0.85 and float((own == batch.inputs)[real].float().mean()) < 0.4
    assert model.training
    alone = replace(batch, source=make_source(random_sentences(6, seed=1)[2:3]), target=make_target(targets[2:3]))
    alone = replace(alone, indices=np.array([2]))
    assert torch.equal(Teacher("linear", 0.5, 0.0, 0.0, 1).inputs(model, alone, 3)[0], half[2, : len(targets[2]) + 1])


def test_weights_of_rewards() -> None:
    def weights(text: str, task: str = "translation") -> dict[str, float]:
        return parse_sum(text, task, setting="train.reward")

    assert weights("bleu") == {"bleu": 1.0}
    assert weights("cider_d + 0.5*bleu4", "captioning") == {"cider_d": 1.0, "bleu4": 0.5}
    with pytest.raises(InputError, match=r"train\.reward=bleu is no score of captioning; choose from bleu1"):
        weights("bleu", "captioning")
    assert weights("chrf+0.5*chrf") == {"chrf": 1.5}
    with pytest.raises(InputError, match=r"train\.reward=0\.5 is no score .*, after its weight: 0\.5\*bleu\."):
        weights("chrf*0.5")
    for setting in ("bleu+", "0.5*", "+bleu"):
        with pytest.raises(InputError, match=rf"train\.reward={re.escape(setting)} has a part without a score: "):
            weights(setting)
    for weight in ("x", "nan", "inf", "0"):
        with pytest.raises(InputError, match=f"the weight of chrf must be a number other than 0, not {weight}"):
            weights(f"{weight}*chrf")


def test_the_loss_of_the_log_is_that_of_a_token_of_the_samples() -> None:
    """Samples of a model that gives each word the same probability have the nats of a word, whatever their lengths."""
    model = translator()
    torch.nn.init.zeros_(model.output.weight)
    with torch.no_grad():
        model.output.bias[[4, 5, EOS]] = 0.0
    nll = float(SequenceLoss(model, settings(), COUNTS, seed=1).double()(SENTENCE).nll)
    assert nll / SENTENCE.tokens == pytest.approx(np.log(3))


def test_the_reference_of_hard_attention_has_no_locations() -> None:
    with pytest.raises(InputError, match=r"train\.risk_reference=true is not for hard attention"):
        check(captioner(), settings(baseline="risk", risk_reference=True))


def test_hard_attention_has_no_moving_average_beside_rewards() -> None:
    model = captioner()
    model.penalties = replace(model.penalties, baseline="moving_average")
    with pytest.raises(InputError, match=r"needs model\.baseline=leave_one_out"):
        check(model, settings(cross_entropy=0.2))
    check(model, settings())
    check(translator(), settings(cross_entropy=0.2))


def test_the_reward_of_the_log_is_that_of_samples() -> None:
    """The reference, whose reward is 5, is not one that was drawn."""
    changes = {"baseline": "risk", "samples": 4}
    with_reference, without = (
        float(SequenceLoss(translator(), settings(**changes, risk_reference=flag), COUNTS, seed=1)(SENTENCE).reward)
        for flag in (True, False)
    )
    assert with_reference == without


def test_a_reward_is_a_finite_number() -> None:
    class Ratio(Count):
        def scores(self, statistics: Any) -> dict[str, float]:
            return {"mine.Count": float("nan")}

    rewards = replace(COUNTS, scorers=lambda references: [Ratio(references)])
    with pytest.raises(
        InputError, match=f"must be a finite number, but “4 5 {sequences.END}” has mine.Count nan: the score must"
    ):
        rewards(np.arange(1), [[Hypothesis([4, 5], 0.0, 0.0, None, True)]])


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"objective": "cross_entropy", "reward": "chrf"},
            "train.reward means nothing without train.objective=sequence",
        ),
        (
            {"objective": "cross_entropy", "teacher_k": 0.5},
            r"train.teacher_k means nothing without train.teacher=linear\|exponential\|inverse_sigmoid",
        ),
        ({"samples": 1}, "train.baseline=leave_one_out needs train.samples of at least 2, not 1"),
        ({"samples": 1, "baseline": "risk"}, "train.baseline=risk needs train.samples of at least 2, not 1"),
        ({"risk_alpha": 1.0}, "train.risk_alpha means nothing without train.baseline=risk"),
        ({"risk_reference": True}, "train.risk_reference means nothing without train.baseline=risk"),
        (
            {"teacher": "exponential", "teacher_k": 0.9, "teacher_least": 0.1, "cross_entropy": 0.1},
            "train.teacher_least means nothing without train.teacher=linear",
        ),
        (
            {"teacher": "inverse_sigmoid"},
            r"train.teacher=inverse_sigmoid needs a share of cross-entropy: train.cross_entropy=0\.2\.",
        ),
        (
            {"teacher": "linear", "cross_entropy": 0.1},
            "never falls below 1: lower train.teacher_k or raise",
        ),
        (
            {"teacher": "inverse_sigmoid", "cross_entropy": 0.1},
            "teacher_k=1 hardly reads the reference's words after ten updates",
        ),
        (
            {"teacher": "exponential", "teacher_k": 2, "cross_entropy": 0.1},
            "teacher_k=2 never falls below 1",
        ),
        (
            {"teacher": "linear", "teacher_k": 0.5, "teacher_least": 1, "cross_entropy": 0.1},
            "teacher_least=1 never falls below 1: lower train.teacher_least",
        ),
        (
            {"teacher": "inverse_sigmoid", "teacher_k": math.inf, "cross_entropy": 0.1},
            "train.teacher_k=inf must be a finite number",
        ),
        (
            {"teacher": "linear", "teacher_slope": math.nan, "cross_entropy": 0.1},
            "train.teacher_slope=nan must be a finite number",
        ),
    ],
)
def test_settings_that_mean_nothing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(**changes).check()


def test_samples_are_hypotheses() -> None:
    """Rewards see the tokens, and the end only of samples that ended."""
    seen: list[str] = []

    class Seeing(Count):
        def statistics(self, hypotheses: Sequence[str]) -> Any:
            seen.extend(hypotheses)
            return super().statistics(hypotheses)

    rewards = replace(COUNTS, scorers=lambda references: [Seeing(references)])
    pair = [Hypothesis([4, 5], 0.0, 0.0, None, True), Hypothesis([4, 4], 0.0, 0.0, None, False)]
    assert rewards(np.arange(1), [pair]).tolist() == [[6.0, 6.0]] and seen == [f"4 5 {sequences.END}", "4 4"]
    assert replace(rewards, end=False)(np.arange(1), [pair]).tolist() == [[4.0, 6.0]]
