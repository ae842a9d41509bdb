"""What a search owes to states that grow, to prefixes, and to those who ask what it considered."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from growing_model import STATES, Allocated, Growing, Past, Stepping
from small_models import VOCABULARY, make_model, random_sentences
from torch import Tensor

from seqtool.data.batches import make_source, make_target
from seqtool.decoding import common
from seqtool.decoding.batching import Ensemble
from seqtool.decoding.beam_search import Lattice, beam_search, length_penalty
from seqtool.decoding.common import Hypothesis, force, read_prefix
from seqtool.decoding.sampling import sample
from seqtool.decoding.tree import device_of, keep, select
from seqtool.models.tokens import BOS, EOS, PAD

SENTENCES = random_sentences(20, seed=31)
WORDS = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
MODELS: dict[str, Callable[[], Any]] = {
    "growing": lambda: Growing(Past),
    "allocated": lambda: Growing(Allocated),
    "stepping": lambda: Stepping(Growing(Allocated)),
    "recurrent": lambda: make_model("bahdanau-gru", scale=1.0),
    "ensemble": lambda: Ensemble([Growing(Allocated), make_model("luong", scale=1.0), Stepping(Growing(Past, 1))]),
}


@pytest.fixture(params=MODELS)
def any_model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def search(
    model: Any, sentences: list[list[int]], prefix: list[list[int]] | None = None, **settings: Any
) -> list[list[Hypothesis]]:
    defaults: dict[str, Any] = {
        "beam": 3,
        "maximum": [12 - len(prefix[0]) if prefix else 12] * len(sentences),
        "n_best": 1,
        "penalty": length_penalty("average", 0),
        "coverage": 0.0,
        "keep_attention": True,
    }
    with torch.inference_mode():
        memory, state = model.encode(make_source(sentences))
        if prefix is not None:
            state, settings["prefix"] = read_prefix(model, memory, state, torch.tensor(prefix, dtype=torch.int64))
        return beam_search(model.step, memory, state, **defaults | settings)


@torch.no_grad()
def log_probabilities(model: Any, sentence: list[int], outputs: list[list[int]]) -> Tensor:
    """log p of each token of each output, EOS included, given those before it: outputs × T, 0 at padding."""
    memory, state = model.encode(make_source([sentence]))
    rows = torch.zeros(len(outputs), dtype=torch.int64)
    memory, state = select(memory, rows), select(state, rows)
    target = make_target(outputs)
    steps = []
    for token, following in itertools.pairwise(target.T):
        logits, state, *_ = model.step(memory, state, token)
        gains = logits.log_softmax(-1).gather(1, following[:, None]).squeeze(1)
        steps.append(gains.masked_fill(following == PAD, 0.0))
    return torch.stack(steps, 1)


@pytest.mark.parametrize("state", STATES)
def test_forward_equals_stepping_equals_prefilling(state: Any) -> None:
    model, source = Growing(state), make_source(SENTENCES)
    target = make_target(random_sentences(20, seed=32))
    expected = model(source, target)
    for known in (0, 1, 4, target.shape[1]):
        memory, now = model.encode(source)
        logits: list[Tensor] = []
        if known:
            now = model.prefill(memory, now, target[:, :known]).state
        for token in target[:, known:].T:
            one, now, *_ = model.step(memory, now, token)
            logits.append(one)
        if logits:
            assert torch.allclose(torch.stack(logits, 1), expected[:, known:], atol=1e-5)


def test_prefilling_equals_stepping() -> None:
    model, source = Growing(Allocated), make_source(SENTENCES)
    tokens = torch.full((20, 3), 5)
    for one in (model, Ensemble([model, make_model("bahdanau-gru")])):
        memory, state = one.encode(source)
        at_once, alpha, _ = one.prefill(memory, state, tokens)
        memory, state = one.encode(source)
        stepped, each, _ = Stepping(one).prefill(memory, state, tokens)
        assert alpha is not None and each is not None and torch.allclose(alpha, each, atol=1e-6)
        token = torch.full((20,), 7)
        logits = [one.step(memory, now, token).logits for now in (at_once, stepped)]
        assert torch.allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("known", [None, 0, 1, 2])
@pytest.mark.parametrize("penalty", ["none", "gnmt"])
def test_full_width_finds_the_best_continuation(any_model: Any, known: int | None, penalty: str) -> None:
    """Of every output of at most 3 tokens, EOS included, after a prefix of known ones."""
    divide = length_penalty(penalty, 0.6)
    for sentence in SENTENCES[:2]:
        prefix = None if known is None else [7, 4][:known]
        start = prefix or []
        ends = [list(s) for n in range(3) for s in itertools.product(WORDS, repeat=n)]
        gains = log_probabilities(any_model, sentence, [start + end for end in ends])[:, len(start) :].sum(1)
        scores = sorted(
            (gain / divide(len(end) + 1) for gain, end in zip(gains.tolist(), ends, strict=True)), reverse=True
        )
        settings = {"beam": 100, "maximum": [3], "n_best": 5, "penalty": divide}
        found = search(any_model, [sentence], None if prefix is None else [prefix], **settings)[0]
        assert [h.score for h in found] == pytest.approx(scores[:5], rel=1e-4)
        for h in found:
            assert h.ended and h.tokens[: len(start)] == start
            assert gains[ends.index(h.tokens[len(start) :])] == pytest.approx(h.log_probability, rel=1e-4)
            assert h.attention is not None and len(h.attention) == len(h.tokens) + 1
            assert torch.allclose(h.attention.sum(1), torch.ones(len(h.attention)))


def test_batch_mates_change_nothing(any_model: Any) -> None:
    """With a prefix of each sentence's own and without one."""
    prefixes = [[4 + i % 7, 4 + i % 3] for i in range(len(SENTENCES))]
    for prefix in (None, prefixes):
        together = search(any_model, SENTENCES, prefix)
        for i, sentence in enumerate(SENTENCES):
            (alone,) = search(any_model, [sentence], None if prefix is None else [prefix[i]])[0]
            assert alone.tokens == together[i][0].tokens
            assert alone.score == pytest.approx(together[i][0].score, rel=1e-4)


def test_attention_is_that_of_forced_decoding(any_model: Any) -> None:
    """Also over what is a prefix, and however rows were reordered and left."""
    lengths = set()
    for prefix in (None, [[5, 9]] * len(SENTENCES)):
        found = [n_best[0] for n_best in search(any_model, SENTENCES, prefix)]
        lengths |= {len(h.tokens) for h in found}
        for sentence, h in zip(SENTENCES, found, strict=True):
            memory, state = any_model.encode(make_source([sentence]))
            (forced,) = force(any_model.step, memory, state, make_target([h.tokens]))
            assert h.attention is not None and forced.attention is not None
            width = len(sentence) + 1
            assert torch.allclose(h.attention[:, :width], forced.attention[: len(h.attention), :width], atol=1e-5)
    assert len(lengths) > 2


def test_a_long_prefix_is_read_in_pieces(any_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([[4 + (i + j) % 7 for j in range(5)] for i in range(len(SENTENCES))])
    found = []
    for size in (1000, 2):
        monkeypatch.setattr(common, "PREFILL_TOKENS", size)
        with torch.inference_mode():
            memory, state = any_model.encode(make_source(SENTENCES))
            state, prefix = read_prefix(any_model, memory, state, tokens)
            logits = any_model.step(memory, state, prefix.tokens[:, -1]).logits
            found.append((logits, prefix.attention))
    (whole, attention), (pieces, in_pieces) = found
    assert torch.allclose(pieces, whole, rtol=1e-5, atol=1e-5)
    assert (attention is None) == (in_pieces is None)
    assert attention is None or torch.allclose(in_pieces, attention, atol=1e-6)


def test_sampling_goes_on_from_a_prefix(any_model: Any) -> None:
    """The likeliest words are those of greedy search."""
    prefix = [[4 + i % 7] for i in range(len(SENTENCES))]
    with torch.inference_mode():
        memory, state = any_model.encode(make_source(SENTENCES))
        state, read = read_prefix(any_model, memory, state, torch.tensor(prefix))
        drawn = sample(
            any_model.step,
            memory,
            state,
            uniform_noise=torch.rand(len(SENTENCES), 1, 11),
            maximum=[11] * len(SENTENCES),
            temperature=1.0,
            top_k=1,
            top_p=1.0,
            keep_attention=True,
            prefix=read,
        )
    for (one,), (two,) in zip(drawn, search(any_model, SENTENCES, prefix, beam=1), strict=True):
        assert one.tokens == two.tokens
        assert one.log_probability == pytest.approx(two.log_probability, rel=1e-4)
        assert one.attention is not None and two.attention is not None
        assert torch.allclose(one.attention, two.attention, atol=1e-5)


def test_a_state_is_selected_in_its_own_way() -> None:
    """Only the part in use is copied; an order that changes nothing copies nothing."""
    state = Allocated.empty(3).grown(torch.ones(3, 2, 6), torch.ones(3, 2, 6))
    tree = (state, torch.arange(3), "label")
    chosen, numbers, label = select(tree, torch.tensor([2, 0]))
    assert chosen.used == 2 and len(chosen.keys) == 2 and bool(chosen.keys[:, 2:].isnan().all())
    assert numbers.tolist() == [2, 0] and label == "label"
    assert keep(tree, torch.arange(3), 3) is tree
    assert keep(tree, torch.arange(2), 3)[1].tolist() == [0, 1]
    assert keep(tree, torch.tensor([1, 0, 2]), 3)[1].tolist() == [1, 0, 2]
    assert device_of(()) == device_of((None, state)) == torch.device("cpu")


def test_greedy_search_copies_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as no sentence leaves."""
    copied: list[int] = []
    original = Allocated.select

    def counted(state: Allocated, rows: Tensor) -> Allocated:
        copied.append(len(rows))
        return original(state, rows)

    monkeypatch.setattr(Allocated, "select", counted)
    model = Growing(Allocated)
    search(model, SENTENCES, beam=1, minimum=12)
    assert not copied
    search(model, SENTENCES, beam=1, maximum=[4] * 10 + [12] * 10, minimum=12)
    assert copied == [10]
    search(model, SENTENCES, beam=2, minimum=12)
    assert copied[1] == 2 * len(SENTENCES)


@pytest.mark.parametrize("beam", [1, 2, 5, 30])
def test_what_was_considered(any_model: Any, beam: int) -> None:
    """What ended, followed back, is what was found; and of what was considered the best was kept."""
    lattice = Lattice()
    settings = {"beam": beam, "n_best": beam, "maximum": [6] * len(SENTENCES)}
    found = search(any_model, SENTENCES, trace=lattice, **settings)
    untold = search(any_model, SENTENCES, **settings)
    assert [[h.tokens for h in n_best] for n_best in found] == [[h.tokens for h in n_best] for n_best in untold]
    for sentence, n_best in enumerate(found):
        steps = lattice.steps[sentence]

        def tokens(t: int, place: int, steps: Any = steps) -> list[int]:
            one = steps[t][place]
            before = [] if t == 0 else tokens(t - 1, one.parent, steps)
            assert one.parent == -1 or steps[t - 1][one.parent].fate == "kept"
            return [*before, one.token]

        ended = {
            tuple(tokens(t, place)): one.log_probability
            for t, step in enumerate(steps)
            for place, one in enumerate(step)
            if one.fate == "ended"
        }
        expected = {(*h.tokens, EOS): h.log_probability for h in n_best if h.ended}
        assert expected.items() <= ended.items()
        for t, step in enumerate(steps):
            log_p = {fate: [one.log_probability for one in step if one.fate == fate] for fate in ("kept", "pruned")}
            assert [one.log_probability for one in step] == sorted((one.log_probability for one in step), reverse=True)
            assert len(log_p["kept"]) <= beam and all(math.isfinite(one.log_probability) for one in step)
            assert len(log_p["kept"]) < beam or max(log_p["pruned"], default=-math.inf) <= max(log_p["kept"])
            assert all(t == 0 or one.log_probability <= steps[t - 1][one.parent].log_probability for one in step)
        assert beam in (1, 30) or any(one.fate == "pruned" for step in steps for one in step)
