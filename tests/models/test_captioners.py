"""Tests of laws that every captioner obeys, and of attention over an image."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import (
    CAPTIONERS,
    DIMENSION,
    ENCODER,
    LOCATIONS,
    SHOW_ATTEND_TELL,
    SHOW_TELL,
    copy_with_fast_parts,
    make_captioner,
    random_images,
    random_sentences,
)
from torch import Tensor, nn

from seqtool.data.batches import Batch, make_target, shared
from seqtool.decoding.beam_search import beam_search, length_penalty
from seqtool.decoding.common import read_prefix
from seqtool.decoding.sampling import sample
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings, ImageCaptioner
from seqtool.models.contract import Output
from seqtool.models.hard_attention import Rows, argmax, draw, expectation
from seqtool.models.initialisation import initialise
from seqtool.models.inputs import Annotations, Pixels
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.models.show_tell import ShowTell
from seqtool.models.tokens import BOS
from seqtool.models.tree import leaves
from seqtool.training.losses import TrainingLoss

Model = ImageCaptioner[Any]
ATTENDING_CAPTIONERS = [name for name in CAPTIONERS if name.startswith("show_attend_tell")]


@pytest.fixture(params=CAPTIONERS)
def captioner(request: pytest.FixtureRequest) -> Model:
    return make_captioner(request.param)


def make_targets(count: int, seed: int) -> Tensor:
    return make_target(random_sentences(count, seed=seed))


def make_batch(source: Annotations | Pixels, target: Tensor) -> Batch:
    return Batch(source, target, np.arange(len(target)), int((target[:, 1:] != 0).sum()))


def test_forward_equals_stepping(captioner: Model) -> None:
    source, target = random_images(5, seed=1), make_targets(5, 2)[:, :-1]
    output = captioner(source, target)
    logits = captioner.project(output.features)
    memory, state = captioner.encode(source)
    for t, token in enumerate(target.T):
        step = captioner.step(memory, state, token)
        state = step.state
        assert torch.allclose(step.logits, logits[:, t], atol=1e-5, rtol=1e-4)
        if output.attention is not None:
            assert torch.allclose(step.attention, output.attention[:, t], atol=1e-5, rtol=1e-4)
    assert output.sampled is None


@pytest.mark.parametrize("training", [False, True])
def test_drawing_equals_stepping_with_the_same_noise(training: bool) -> None:
    """M samples of an image are M copies of the image, each with different noise."""
    model = make_captioner("show_attend_tell-hard").train(training)
    assert isinstance(model, ShowAttendTell)
    source, target = random_images(4, seed=1), make_targets(4, 2)[:, :-1]
    noise = torch.rand(12, target.shape[1])
    output = model.forward_rows(source, target, Rows.with_noise(4, noise))
    logits = model.project(output.features)
    assert output.sampled is not None and output.sampled.expected_rows == 0 and output.sampled.samples == 3
    assert output.sampled.image.tolist() == [i for i in range(4) for _ in range(3)]
    memory, state = model.encode(Annotations(source.values.repeat_interleave(3, 0)))
    memory = replace(memory, uniform_noise=noise, choose=draw)
    for t, token in enumerate(target.repeat_interleave(3, 0).T):
        step = model.step(memory, state, token)
        state = step.state
        assert torch.allclose(step.logits, logits[:, t], atol=1e-5, rtol=1e-4)
        location = draw(step.attention, noise[:, t]).argmax(-1, keepdim=True)
        log_p = step.attention.gather(1, location).log().squeeze(1)
        assert torch.allclose(output.sampled.log_probability[:, t], log_p, atol=1e-4)
        entropy = -(step.attention * step.attention.log()).sum(1)
        assert torch.allclose(output.sampled.entropy[:, t], entropy, atol=1e-4)


def test_beams_share_the_noise_of_their_image() -> None:
    """K states over one memory row are K copies of that row."""
    model = make_captioner("show_attend_tell-hard")
    images = random_images(2, seed=3)
    memory, _ = model.encode(images)
    memory = replace(memory, uniform_noise=torch.tensor([[0.1, 0.9], [0.6, 0.2]]), choose=draw)
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    copied_memory, state = model.encode(Annotations(images.values[rows]))
    copied_memory = replace(copied_memory, uniform_noise=memory.uniform_noise[rows], choose=draw)
    for token in (torch.arange(4, 10), torch.arange(5, 11) % 11):
        step = model.step(memory, state, token)
        assert torch.allclose(step.logits, model.step(copied_memory, state, token).logits, atol=1e-5)
        state = step.state


def test_locations_are_expected_likeliest_or_drawn() -> None:
    alpha = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.4, 0.6]])
    assert expectation(alpha, torch.zeros(2)) is alpha
    assert argmax(alpha, torch.zeros(2)).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert draw(alpha, torch.tensor([0.19, 0.0])).argmax(1).tolist() == [0, 1]
    assert draw(alpha, torch.tensor([0.21, 0.39])).argmax(1).tolist() == [1, 1]
    assert draw(alpha, torch.tensor([0.999999, 0.41])).argmax(1).tolist() == [2, 2]
    many = draw(alpha[:1].expand(20000, 3), torch.rand(20000, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(many.mean(0), alpha[0], atol=0.015)


@pytest.mark.parametrize("name", ATTENDING_CAPTIONERS)
def test_attention_is_a_distribution_that_depends_on_the_state(name: str) -> None:
    """If h added the same to all scores, it would cancel in the softmax, and the map of attention would never move."""
    model = make_captioner(name)
    source, target = random_images(3, seed=4), make_targets(3, 5)[:, :-1]
    alpha = model(source, target).attention
    assert alpha is not None and alpha.shape == (3, target.shape[1], LOCATIONS)
    assert torch.allclose(alpha.sum(-1), torch.ones(alpha.shape[:2]))
    memory, state = model.encode(source)
    token = torch.full((3,), BOS)
    h, *c = state.cell
    changed = model.step(memory, replace(state, cell=(h + torch.randn_like(h), *c)), token)
    assert (changed.attention - model.step(memory, state, token).attention).abs().max() > 1e-3


def test_attention_sees_the_state_before_the_update() -> None:
    """The first map depends on the image alone, not on the first word."""
    model, source = make_captioner("show_attend_tell-soft"), random_images(2, seed=6)
    equal_words, different_words = torch.tensor([[4], [4]]), torch.tensor([[5], [6]])
    assert torch.equal(model(source, equal_words).attention, model(source, different_words).attention)


def test_the_gate_is_a_scalar_that_closes_and_opens() -> None:
    """A closed gate lets nothing of the image pass except by the first state; an open gate changes nothing."""
    gated = make_captioner("show_attend_tell-soft")
    assert isinstance(gated, ShowAttendTell) and gated.gate is not None and gated.gate.weight.shape == (1, 8)
    images, other_images, token = random_images(2, seed=7), random_images(2, seed=8), torch.tensor([4, 5])
    memory, state = gated.encode(images)
    other_memory, _ = gated.encode(other_images)
    nn.init.constant_(gated.gate.bias, -1e4)
    assert torch.equal(gated.step(memory, state, token).logits, gated.step(other_memory, state, token).logits)
    nn.init.constant_(gated.gate.bias, 1e4)
    opened = gated.step(memory, state, token).logits
    assert not torch.allclose(opened, gated.step(other_memory, state, token).logits, atol=1e-3)
    gated.gate = None
    assert torch.allclose(gated.step(memory, state, token).logits, opened, atol=1e-5)


def test_context_is_the_gated_mean_of_the_annotations() -> None:
    """Equations (4)–(6) and (7) are computed by hand for one step."""
    model = make_captioner("show_attend_tell-soft")
    assert isinstance(model, ShowAttendTell) and model.gate is not None
    a = random_images(1, seed=9).values[0].float()
    memory, state = model.encode(Annotations(a[None].half()))
    h, c = (tensor[0] for tensor in state.cell)
    first = torch.tanh(model.initial.weight @ a.mean(0) + model.initial.bias)
    assert torch.allclose(torch.cat([h, c]), first, atol=1e-5)
    e = torch.stack([model.score.v.weight[0] @ torch.tanh(model.score.U.weight @ a_i + model.score.W(h)) for a_i in a])
    z = torch.sigmoid(model.gate(h)) * (e.softmax(0)[:, None] * a).sum(0)
    y = model.target_embedding.weight[5]
    i, f, g, o = (model.cell_word(y) + model.cell_context(z) + model.cell.recurrent(h)).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    logits = model.output(torch.tanh(y + model.deep_state(h) + model.deep_context(z)))
    step = model.step(memory, state, torch.tensor([5]))
    assert torch.allclose(step.logits[0], logits, atol=1e-4)
    assert torch.allclose(step.attention[0], e.softmax(0), atol=1e-5)


@pytest.mark.parametrize(("context", "steps"), [("every_step", (1, 1, 1)), ("with_start", (1, 0, 0))])
def test_show_tell_adds_the_image_to_pre_activations(context: str, steps: tuple[int, ...]) -> None:
    """h = tanh(W y + W_ih v + U h + b), at every step or only at that of <bos>, and W y + U h + b at other steps."""
    model = ShowTell(**SHOW_TELL | {"context": context, "cell": "rnn", "layers": 1})
    source = random_images(1, seed=10)
    v = model.image(source.values[0].float().mean(0))
    memory, state = model.encode(source)
    h = torch.zeros(8)
    W_y, W_ih = model.decoder[0].input.weight.split(6, 1)  # noqa: N806
    for token, on in zip((BOS, 4, 7), steps, strict=True):
        y = model.target_embedding.weight[token]
        h = torch.tanh(W_y @ y + on * W_ih @ v + model.decoder[0].input.bias + model.decoder[0].cell.recurrent(h))  # type: ignore[operator]
        step = model.step(memory, state, torch.tensor([token]))
        state = step.state
        assert torch.allclose(step.logits[0], model.output(h), atol=1e-5)


def test_other_images_of_a_batch_change_nothing(captioner: Model) -> None:
    """Outputs are equal bit for bit in batches of one shape, and up to rounding in batches of another shape."""
    target = make_targets(6, 11)[:, :-1]
    images, other_images = random_images(6, seed=12).values, random_images(6, seed=13).values
    noise = torch.rand(6, target.shape[1])
    mixed = torch.cat([images[:2], other_images[2:]])

    def forward_by_rows(images: Tensor, target: Tensor, noise: Tensor) -> Output:
        assert isinstance(captioner, ShowAttendTell)
        return captioner.forward_rows(Annotations(images), target, Rows.with_noise(len(images), noise))

    forwards: list[Any] = [lambda images, target, _: captioner(Annotations(images), target)]
    for forward in [*forwards, forward_by_rows] if captioner.hard else forwards:
        features = forward(images, target, noise).features
        assert torch.equal(forward(mixed, target, noise).features[:2], features[:2])
        single = forward(images[:1], target[:1], noise[:1]).features
        assert torch.allclose(single, features[:1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("choice", [expectation, argmax, draw])
def test_other_images_of_a_batch_never_change_a_caption(choice: Any) -> None:
    model = make_captioner("show_attend_tell-hard", scale=3.0)
    images, noise = random_images(5, seed=14).values, torch.rand(5, 8)

    def captions(rows: list[int]) -> list[Any]:
        memory, state = model.encode(Annotations(images[rows]))
        memory = replace(memory, uniform_noise=noise[rows], choose=choice)
        results = beam_search(
            model.step,
            memory,
            state,
            beam=3,
            maximum=[8] * len(rows),
            n_best=2,
            penalty=length_penalty("average", 0.0),
            coverage=0.0,
            keep_attention=False,
        )
        return [[hypothesis.tokens for hypothesis in n_best] for n_best in results]

    together = captions([0, 1, 2, 3, 4])
    assert captions([3, 0]) == [together[3], together[0]] and captions([2]) == [together[2]]


@pytest.mark.parametrize("rows, captions", [(None, 3), ([1, 0], 3), ([1, 0, 0, 0, 1, 0], 1)])
def test_an_image_is_read_once_for_its_captions(captioner: Model, rows: list[int] | None, captions: int) -> None:
    """As if each caption had an image of its own."""
    images = random_images(2, seed=14)
    source = replace(images, rows=None if rows is None else torch.tensor(rows), captions_each=captions)
    repeated, target = replace(images, values=source.each(images.values)), make_targets(6, 15)
    for model in (captioner.train(), copy_with_fast_parts(captioner)):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5
        read: list[int] = []
        if isinstance(model, ShowAttendTell):
            keys_of = model.score.keys
            model.score.keys = lambda a, keys_of=keys_of, read=read: (read.append(len(a)), keys_of(a))[1]
        memory, state = model.encode(source)
        assert {len(tensor) for tensor in leaves(memory)} == {6 // captions}
        assert {len(tensor) for tensor in leaves(state)} == {6}
        loss, sums, gradients = TrainingLoss(model, 0.1), [], []
        for images in (source, repeated):
            model.zero_grad()
            torch.manual_seed(16)
            total, nll, *_ = loss(make_batch(images, target))
            total.backward()
            sums.append(torch.stack([total.detach(), nll.detach()]))
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        assert read == ([2, 2, 6] if isinstance(model, ShowAttendTell) else [])
        torch.testing.assert_close(*sums, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
        assert sum(map(torch.count_nonzero, gradients[0].values())) > 0


def test_pictures_are_augmented_before_locations_are_drawn() -> None:
    """So that the same seed gives the same draws if torch.compile's graphs read annotation vectors."""
    encoder = EncoderSettings(**ENCODER | {"fine_tune_from": 0, "augment": True})
    model = ShowAttendTell(**SHOW_ATTEND_TELL | {"attention": "hard", "samples": 3, "encoder": encoder}).train()
    pixels = Pixels(torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8))
    features = []
    for source in (lambda: pixels, lambda: model.augmented(pixels), lambda: model.annotated(pixels)):
        torch.manual_seed(17)
        features.append(model(source(), make_targets(2, 18)[:, :-1]).features)
    assert torch.equal(features[0], features[1]) and torch.equal(features[0], features[2])


def test_images_of_a_batch_of_captions() -> None:
    """Groups of captions share a row of the memory where every image has equally many."""
    images = random_images(2, seed=1)

    def rows_and_captions(*row: int) -> tuple[Any, int]:
        source = shared(images, np.array(row))
        assert source.each(torch.arange(2)).tolist() == list(row)
        return source.rows if source.rows is None else source.rows.tolist(), source.captions_each

    assert rows_and_captions(0, 1) == (None, 1)
    assert rows_and_captions(0, 0, 1, 1) == (None, 2)
    assert rows_and_captions(1, 1, 1, 0, 0, 0) == ([1, 0], 3)
    assert rows_and_captions(0, 1, 1) == ([0, 1, 1], 1)
    assert rows_and_captions(0, 1, 1, 0) == ([0, 1, 1, 0], 1)


@pytest.mark.parametrize("name", CAPTIONERS)
def test_cached_annotations_are_rounded_live_ones(name: str) -> None:
    model = make_captioner(name)
    pixels = torch.randint(0, 256, (4, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(15))
    cached = Annotations(model.backbone(pixels).half())
    assert cached.values.shape == (4, LOCATIONS, DIMENSION)

    class RoundedBackbone(nn.Module):
        def __init__(self, backbone: nn.Module) -> None:
            super().__init__()
            self.backbone = backbone

        def forward(self, pixels: Tensor) -> Tensor:
            return self.backbone(pixels).half().float()  # type: ignore[no-any-return]

    loss, target = TrainingLoss(model, 0.0), make_targets(4, 16)
    from_cache = loss(make_batch(cached, target))
    live = loss(make_batch(Pixels(pixels), target))
    model.backbone = RoundedBackbone(model.backbone)  # type: ignore[assignment]
    rounded = loss(make_batch(Pixels(pixels), target))
    assert torch.equal(from_cache.total, rounded.total) and torch.equal(from_cache.nll, rounded.nll)
    assert float(live.nll) == pytest.approx(float(rounded.nll), rel=1e-2)


def test_every_parameter_gets_a_gradient(captioner: Model) -> None:
    torch.manual_seed(0)
    TrainingLoss(captioner.train(), 0.0)(make_batch(random_images(5, seed=17), make_targets(5, 18))).total.backward()
    trained = {name: parameter for name, parameter in captioner.named_parameters() if parameter.requires_grad}
    assert not [name for name, parameter in trained.items() if parameter.grad is None]
    assert all(parameter.grad is None for parameter in captioner.backbone.parameters())


def test_a_trained_backbone_gets_gradients_from_pixels() -> None:
    encoder = EncoderSettings(**ENCODER | {"fine_tune_from": 0, "augment": True})
    model = ShowAttendTell(**SHOW_ATTEND_TELL | {"encoder": encoder}).train()
    pixels = Pixels(torch.randint(0, 256, (3, 3, 24, 24), dtype=torch.uint8))
    TrainingLoss(model, 0.0)(make_batch(pixels, make_targets(3, 19))).total.backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())


def test_pictures_are_augmented_once_and_in_training_only() -> None:
    encoder = EncoderSettings(**ENCODER | {"fine_tune_from": 0, "augment": True})
    model = ShowAttendTell(**SHOW_ATTEND_TELL | {"encoder": encoder})
    rows = torch.tensor([0, 1, 1, 2])
    pixels = Pixels(torch.randint(0, 256, (3, 3, 24, 24), dtype=torch.uint8), rows=rows)
    plain = model.eval().annotations(pixels)
    assert model.augmented(pixels) is pixels and torch.equal(model.annotations(pixels), plain)
    changed = model.train().augmented(pixels)
    assert not torch.allclose(model.annotations(pixels), plain, atol=1e-3)
    assert torch.equal(model.annotations(changed), model.annotations(changed))
    assert torch.equal(model.annotations(changed), model.eval().annotations(changed))


def test_a_backbone_of_ones_own_gets_augmented_pictures() -> None:
    class Mean(nn.Module):
        """The mean colour of a picture, as its one location."""

        locations, dimension = (1, 1), 3

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            assert pixels.dtype == torch.float32
            return pixels.flatten(2).mean(-1)[:, None]

    encoder = EncoderSettings(**ENCODER | {"fine_tune_from": 0, "augment": True})
    model = ShowAttendTell(**SHOW_ATTEND_TELL | {"encoder": encoder}).train()
    model.backbone = Mean()
    pixels = Pixels(torch.randint(0, 256, (3, 3, 24, 24), dtype=torch.uint8))
    mean = pixels.values.float().flatten(2).mean(-1)[:, None]
    assert not torch.allclose(model.annotations(pixels), mean, atol=1)
    torch.testing.assert_close(model.eval().annotations(pixels), mean)


def test_pictures_are_mirrored_in_training_only(captioner: Model) -> None:
    pixels = Pixels(torch.randint(0, 256, (12, 3, 24, 24), dtype=torch.uint8), may_mirror=torch.arange(12) < 11)
    plain = captioner.eval().annotations(replace(pixels, may_mirror=None))
    assert torch.equal(captioner.annotations(pixels), plain)
    differs = (captioner.train().annotations(pixels) != plain).flatten(1).any(1)
    assert differs[:11].any() and not differs.all() and not differs[11]


def test_no_initialisation_touches_the_backbone() -> None:
    model = make_captioner("show_attend_tell-soft")
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    for name in ("default", "sutskever2014", "bahdanau2015"):
        initialise(model, name)
        assert all(torch.equal(tensor, before[key]) for key, tensor in model.backbone.state_dict().items())


def test_hard_attention_mixes_by_image() -> None:
    """A share of the images takes the expected context, with one row each; the others draw, with M rows each."""
    torch.manual_seed(0)
    model = ShowAttendTell(**SHOW_ATTEND_TELL | {"attention": "hard", "samples": 3, "soft_share": 0.3}).train()
    source, target = random_images(5, seed=20), make_targets(5, 21)[:, :-1]
    expected_images = []
    for _ in range(60):
        output = model(source, target)
        sampled = output.sampled
        assert sampled is not None and sampled.expected_rows in (1, 2)
        images = sampled.image.tolist()  # of each row
        assert sorted(set(images)) == list(range(5))
        assert len(images) == len(output.features) == sampled.expected_rows + 3 * (5 - sampled.expected_rows)
        assert all(len(set(images[i : i + 3])) == 1 for i in range(sampled.expected_rows, len(images), 3))
        expected_images += images[: sampled.expected_rows]
        with torch.no_grad():
            single = model.eval()(Annotations(source.values[images[:1]]), target[images[:1]])
        model.train()
        assert torch.allclose(output.features[:1], single.features, atol=1e-5)
    assert 70 < len(expected_images) < 110 and set(expected_images) == set(range(5)), "30 % of 300, from all images"
    assert model.eval()(source, target).sampled is None, "outside of training the context is expected"


@pytest.mark.parametrize(
    "name", ["show_attend_tell-soft", "show_attend_tell-hard", "show_tell-first_step", "show_tell-every_step"]
)
def test_captioners_learn_to_describe_three_images(name: str) -> None:
    """Each image has objects at locations; its caption names them in a certain order. Captions differ in length."""
    torch.manual_seed(1)
    model = CAPTIONERS[name]()
    initialise(model, "default")
    objects = torch.randn(7, DIMENSION, generator=torch.Generator().manual_seed(0))
    captions = [[4, 5, 6], [6, 4, 7, 10, 5], [8, 9]]
    a = torch.zeros(3, LOCATIONS, DIMENSION)
    for image, caption in enumerate(captions):
        for n, word in enumerate(caption):
            a[image, (5 * n + image) % LOCATIONS] = objects[word - 4]
    examples = make_batch(Annotations(a.half()), make_target(captions))
    loss = TrainingLoss(model, 0.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    model.train()
    for _ in range(250):
        optimiser.zero_grad()
        result = loss(examples)
        (result.total / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        if result.reward is not None:
            loss.observe(result.reward / result.rewarded)
    model.eval()
    memory, state = model.encode(examples.source)
    results = beam_search(
        model.step,
        memory,
        state,
        beam=1,
        maximum=[8] * 3,
        n_best=1,
        penalty=length_penalty("none", 0.0),
        coverage=0.0,
        keep_attention=False,
    )
    assert [hypotheses[0].tokens for hypotheses in results] == captions
    assert all(hypotheses[0].ended for hypotheses in results)


def test_unusable_settings_are_named() -> None:
    with pytest.raises(
        InputError, match=r"^Unknown model.context 'last'; choose from first_step, with_start, initial_state"
    ):
        ShowTell(**SHOW_TELL | {"context": "last"})
    with pytest.raises(InputError, match=r"^Unknown model.tie 'all' of a captioner; choose from none, output\.$"):
        ShowTell(**SHOW_TELL | {"tie": "all"})
    with pytest.raises(InputError, match=r"model.tie=output needs the output features to be .* are 8 and 6"):
        ShowTell(**SHOW_TELL | {"tie": "output"})
    wrong = {"attention": "firm", "baseline": "mean", "embedding_dropout": 1.0, "soft_share": 1.5, "decay": 1.0}
    wrong |= {"credit": "all"}
    with pytest.raises(InputError) as error:
        ShowAttendTell(**SHOW_ATTEND_TELL | wrong)
    assert str(error.value) == (
        "Unknown model.attention 'firm'; choose from soft, hard. "
        "Unknown model.baseline 'mean'; choose from moving_average, leave_one_out, none. "
        "Unknown model.credit 'all'; choose from caption, future. "
        "model.embedding_dropout must be below 1, not 1.0. "
        "model.soft_share must be at most 1, not 1.5. model.decay must be below 1, not 1.0."
    )
    with pytest.raises(InputError, match=r"^model.samples must be at least 1, not 0\.$"):
        ShowAttendTell(**SHOW_ATTEND_TELL | {"samples": 0})
    with pytest.raises(InputError, match=r"^model.credit=future needs model.baseline=leave_one_out or none\.$"):
        ShowAttendTell(**SHOW_ATTEND_TELL | {"attention": "hard", "credit": "future"})
    with pytest.raises(InputError, match=r"^model.baseline=leave_one_out needs model.samples of at least 2, not 1\.$"):
        ShowAttendTell(**SHOW_ATTEND_TELL | {"attention": "hard", "baseline": "leave_one_out"})


@pytest.mark.parametrize("choice", [argmax, draw])
@pytest.mark.parametrize("prefix", [None, [5, 9]])
def test_hypotheses_have_the_locations_that_were_chosen(choice: Any, prefix: list[int] | None) -> None:
    """With and without a prefix, searches and samples record the locations that attention and noise give."""
    model = make_captioner("show_attend_tell-hard", scale=3.0)
    images, noise = random_images(4, seed=14), torch.rand(4, 10)
    prefilled, start = None, 0 if prefix is None else len(prefix)
    with torch.inference_mode():
        memory, state = model.encode(images)
        memory = replace(memory, uniform_noise=noise, choose=choice)
        if prefix is not None:
            state, prefilled = read_prefix(model, memory, state, torch.tensor([prefix] * 4))
        options: dict[str, Any] = {"maximum": [10 - start] * 4, "keep_attention": True, "prefix": prefilled}
        penalty = length_penalty("average", 0.0)
        results = beam_search(model.step, memory, state, beam=3, n_best=2, penalty=penalty, coverage=0.0, **options)
        sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        results += sample(model.step, memory, state, uniform_noise=torch.rand(4, 2, 10), **sampling, **options)
    for i, n_best in enumerate(results):
        for hypothesis in n_best:
            attention, locations = hypothesis.attention, hypothesis.locations
            assert attention is not None and locations is not None
            assert len(locations) == len(attention) == len(hypothesis.tokens) + hypothesis.ended
            assert locations == choice(attention, noise[i % 4][: len(attention)]).argmax(-1).tolist()


def test_hypotheses_without_a_choice_have_no_locations() -> None:
    for name in ATTENDING_CAPTIONERS:
        model = make_captioner(name)
        with torch.inference_mode():
            memory, state = model.encode(random_images(2, seed=14))
            limits = {"maximum": [5] * 2, "keep_attention": True}
            penalty = length_penalty("average", 0.0)
            for n_best in beam_search(
                model.step, memory, state, beam=2, n_best=1, penalty=penalty, coverage=0.0, **limits
            ):
                assert n_best[0].locations is None and n_best[0].attention is not None
