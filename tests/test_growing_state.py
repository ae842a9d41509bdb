"""Tests of searches: states that grow with every step, prefixes, and records of the candidates."""

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
from seqtool.models.tokens import BOS, EOS, PAD
from seqtool.models.tree import device_of, keep, select

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
    """Return the log-probability of each token of each output, EOS included: outputs × T, 0 at padding."""
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


@pytest.mark.parametrize("state_class", STATES)
def test_forward_equals_stepping_equals_prefilling(state_class: Any) -> None:
    model, source = Growing(state_class), make_source(SENTENCES)
    target = make_target(random_sentences(20, seed=32))
    expected = model(source, target)
    for prefix_length in (0, 1, 4, target.shape[1]):
        memory, state = model.encode(source)
        logits: list[Tensor] = []
        if prefix_length:
            state = model.prefill(memory, state, target[:, :prefix_length]).state
        for token in target[:, prefix_length:].T:
            step_logits, state, *_ = model.step(memory, state, token)
            logits.append(step_logits)
        if logits:
            assert torch.allclose(torch.stack(logits, 1), expected[:, prefix_length:], atol=1e-5)


def test_prefilling_equals_stepping() -> None:
    model, source = Growing(Allocated), make_source(SENTENCES)
    tokens = torch.full((20, 3), 5)
    for step_model in (model, Ensemble([model, make_model("bahdanau-gru")])):
        memory, state = step_model.encode(source)
        prefilled, alpha, _ = step_model.prefill(memory, state, tokens)
        memory, state = step_model.encode(source)
        stepped, stepped_alpha, _ = Stepping(step_model).prefill(memory, state, tokens)
        assert alpha is not None and stepped_alpha is not None and torch.allclose(alpha, stepped_alpha, atol=1e-6)
        token = torch.full((20,), 7)
        logits = [step_model.step(memory, state_after, token).logits for state_after in (prefilled, stepped)]
        assert torch.allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("prefix_length", [None, 0, 1, 2])
@pytest.mark.parametrize("penalty", ["none", "gnmt"])
def test_full_width_finds_the_best_continuation(any_model: Any, prefix_length: int | None, penalty: str) -> None:
    """The search considers all outputs of at most 3 tokens, EOS included, after a prefix or from the beginning."""
    divide = length_penalty(penalty, 0.6)
    for sentence in SENTENCES[:2]:
        prefix = None if prefix_length is None else [7, 4][:prefix_length]
        start = prefix or []
        ends = [list(words) for length in range(3) for words in itertools.product(WORDS, repeat=length)]
        gains = log_probabilities(any_model, sentence, [start + end for end in ends])[:, len(start) :].sum(1)
        scores = sorted(
            (gain / divide(len(end) + 1) for gain, end in zip(gains.tolist(), ends, strict=True)), reverse=True
        )
        settings = {"beam": 100, "maximum": [3], "n_best": 5, "penalty": divide}
        n_best = search(any_model, [sentence], None if prefix is None else [prefix], **settings)[0]
        assert [h.score for h in n_best] == pytest.approx(scores[:5], rel=1e-4)
        for h in n_best:
            assert h.ended and h.tokens[: len(start)] == start
            assert gains[ends.index(h.tokens[len(start) :])] == pytest.approx(h.log_probability, rel=1e-4)
            assert h.attention is not None and len(h.attention) == len(h.tokens) + 1
            assert torch.allclose(h.attention.sum(1), torch.ones(len(h.attention)))


def test_other_sentences_in_a_batch_change_nothing(any_model: Any) -> None:
    """Sentences are searched with a different prefix each, and without prefixes."""
    prefixes = [[4 + i % 7, 4 + i % 3] for i in range(len(SENTENCES))]
    for prefix in (None, prefixes):
        together = search(any_model, SENTENCES, prefix)
        for i, sentence in enumerate(SENTENCES):
            (alone,) = search(any_model, [sentence], None if prefix is None else [prefix[i]])[0]
            assert alone.tokens == together[i][0].tokens
            assert alone.score == pytest.approx(together[i][0].score, rel=1e-4)


def test_attention_matches_forced_decoding(any_model: Any) -> None:
    """The attention over a prefix is included, and rows are reordered or leave the batch on the way."""
    lengths = set()
    for prefix in (None, [[5, 9]] * len(SENTENCES)):
        hypotheses = [n_best[0] for n_best in search(any_model, SENTENCES, prefix)]
        lengths |= {len(h.tokens) for h in hypotheses}
        for sentence, h in zip(SENTENCES, hypotheses, strict=True):
            memory, state = any_model.encode(make_source([sentence]))
            (forced,) = force(any_model.step, memory, state, make_target([h.tokens]))
            assert h.attention is not None and forced.attention is not None
            width = len(sentence) + 1
            assert torch.allclose(h.attention[:, :width], forced.attention[: len(h.attention), :width], atol=1e-5)
    assert len(lengths) > 2


def test_a_long_prefix_is_read_in_pieces(any_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([[4 + (i + j) % 7 for j in range(5)] for i in range(len(SENTENCES))])
    results = []
    for size in (1000, 2):
        monkeypatch.setattr(common, "PREFILL_TOKENS", size)
        with torch.inference_mode():
            memory, state = any_model.encode(make_source(SENTENCES))
            state, prefix = read_prefix(any_model, memory, state, tokens)
            logits = any_model.step(memory, state, prefix.tokens[:, -1]).logits
            results.append((logits, prefix.attention))
    (expected_logits, expected_attention), (logits, attention) = results
    assert torch.allclose(logits, expected_logits, rtol=1e-5, atol=1e-5)
    assert (expected_attention is None) == (attention is None)
    assert expected_attention is None or torch.allclose(attention, expected_attention, atol=1e-6)


def test_sampling_continues_a_prefix(any_model: Any) -> None:
    """Sampling from only the most probable word (top_k=1) equals greedy search."""
    prefix = [[4 + i % 7] for i in range(len(SENTENCES))]
    with torch.inference_mode():
        memory, state = any_model.encode(make_source(SENTENCES))
        state, read_tokens = read_prefix(any_model, memory, state, torch.tensor(prefix))
        samples = sample(
            any_model.step,
            memory,
            state,
            uniform_noise=torch.rand(len(SENTENCES), 1, 11),
            maximum=[11] * len(SENTENCES),
            temperature=1.0,
            top_k=1,
            top_p=1.0,
            keep_attention=True,
            prefix=read_tokens,
        )
    for (drawn,), (greedy,) in zip(samples, search(any_model, SENTENCES, prefix, beam=1), strict=True):
        assert drawn.tokens == greedy.tokens
        assert drawn.log_probability == pytest.approx(greedy.log_probability, rel=1e-4)
        assert drawn.attention is not None and greedy.attention is not None
        assert torch.allclose(drawn.attention, greedy.attention, atol=1e-5)


def test_a_state_may_define_how_its_rows_are_selected() -> None:
    """`Allocated` copies only the positions in use. An order that changes nothing copies nothing."""
    state = Allocated.empty(3).grown(torch.ones(3, 2, 6), torch.ones(3, 2, 6))
    tree = (state, torch.arange(3), "label")
    selected, numbers, label = select(tree, torch.tensor([2, 0]))
    assert selected.used == 2 and len(selected.keys) == 2 and bool(selected.keys[:, 2:].isnan().all())
    assert numbers.tolist() == [2, 0] and label == "label"
    assert keep(tree, torch.arange(3), 3) is tree
    assert keep(tree, torch.arange(2), 3)[1].tolist() == [0, 1]
    assert keep(tree, torch.tensor([1, 0, 2]), 3)[1].tolist() == [1, 0, 2]
    assert device_of(()) == device_of((None, state)) == torch.device("cpu")


def test_greedy_search_copies_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """States are copied only when a sentence ends, and in every step of a wider beam."""
    copied_rows: list[int] = []
    original = Allocated.select

    def counting_select(state: Allocated, rows: Tensor) -> Allocated:
        copied_rows.append(len(rows))
        return original(state, rows)

    monkeypatch.setattr(Allocated, "select", counting_select)
    model = Growing(Allocated)
    search(model, SENTENCES, beam=1, minimum=12)
    assert not copied_rows
    search(model, SENTENCES, beam=1, maximum=[4] * 10 + [12] * 10, minimum=12)
    assert copied_rows == [10]
    search(model, SENTENCES, beam=2, minimum=12)
    assert copied_rows[1] == 2 * len(SENTENCES)


@pytest.mark.parametrize("beam", [1, 2, 5, 30])
def test_the_trace_records_every_candidate(any_model: Any, beam: int) -> None:
    """Ended candidates, followed back, are the hypotheses returned; the kept candidates are the best ones."""
    lattice = Lattice()
    settings = {"beam": beam, "n_best": beam, "maximum": [6] * len(SENTENCES)}
    traced = search(any_model, SENTENCES, trace=lattice, **settings)
    untraced = search(any_model, SENTENCES, **settings)
    assert [[h.tokens for h in n_best] for n_best in traced] == [[h.tokens for h in n_best] for n_best in untraced]
    for sentence, n_best in enumerate(traced):
        steps = lattice.steps[sentence]

        def tokens(t: int, index: int, steps: Any = steps) -> list[int]:
            candidate = steps[t][index]
            earlier = [] if t == 0 else tokens(t - 1, candidate.parent, steps)
            assert candidate.parent == -1 or steps[t - 1][candidate.parent].fate == "kept"
            return [*earlier, candidate.token]

        ended = {
            tuple(tokens(t, index)): candidate.log_probability
            for t, step in enumerate(steps)
            for index, candidate in enumerate(step)
            if candidate.fate == "ended"
        }
        expected = {(*h.tokens, EOS): h.log_probability for h in n_best if h.ended}
        assert expected.items() <= ended.items()
        for t, step in enumerate(steps):
            log_p = [candidate.log_probability for candidate in step]
            kept = [candidate.log_probability for candidate in step if candidate.fate == "kept"]
            pruned = [candidate.log_probability for candidate in step if candidate.fate == "pruned"]
            assert log_p == sorted(log_p, reverse=True)
            assert len(kept) <= beam and all(math.isfinite(value) for value in log_p)
            assert len(kept) < beam or max(pruned, default=-math.inf) <= max(kept)
            assert all(t == 0 or log_p[i] <= steps[t - 1][step[i].parent].log_probability for i in range(len(step)))
        assert beam in (1, 30) or any(candidate.fate == "pruned" for step in steps for candidate in step)
