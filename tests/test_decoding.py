"""Tests of decoding: beam search, length and coverage penalties, ensembles, forced decoding and sampling."""

import itertools
import math
from typing import Any

import pytest
import torch
from small_models import VOCABULARY, make_model, random_sentences

from seqtool.data.batches import make_source, make_target
from seqtool.decoding.batching import Ensemble, map_in_batches
from seqtool.decoding.beam_search import beam_search, highest_sums, length_penalty
from seqtool.decoding.common import Hypothesis, excluded_ids, force
from seqtool.decoding.sampling import TokenSampler, sample
from seqtool.errors import InputError
from seqtool.models.contract import Step
from seqtool.models.tokens import BOS, EOS, PAD
from seqtool.models.tree import select
from seqtool.runtime import distributed

SENTENCES = random_sentences(40, seed=20)


def search(model: Any, sentences: list[list[int]], **settings: Any) -> list[list[Hypothesis]]:
    defaults: dict[str, Any] = {
        "beam": 3,
        "maximum": [12] * len(sentences),
        "n_best": 1,
        "penalty": length_penalty("none", 0),
        "coverage": 0.0,
        "keep_attention": False,
    }
    source = make_source(sentences)
    with torch.inference_mode():
        return beam_search(model.step, *model.encode(source), mask=source.mask, **defaults | settings)


def greedy_search(model: Any, sentence: list[int], maximum: int) -> list[int]:
    """Return the tokens of greedy search, as an independent implementation of it."""
    memory, state = model.encode(make_source([sentence]))
    token, tokens = torch.tensor([BOS]), []
    for _ in range(maximum):
        logits, state, *_ = model.step(memory, state, token)
        logits[:, [PAD, BOS]] = -math.inf
        token = logits.argmax(-1)
        if int(token) == EOS:
            break
        tokens.append(int(token))
    return tokens


def test_beam_1_equals_greedy_search(model: Any) -> None:
    hypotheses = search(model, SENTENCES, beam=1)
    with torch.inference_mode():
        expected = [greedy_search(model, sentence, 12) for sentence in SENTENCES]
    assert [n_best[0].tokens for n_best in hypotheses] == expected


@pytest.mark.parametrize("penalty", ["none", "average", "gnmt"])
def test_full_width_finds_the_optimum(penalty: str) -> None:
    """The optimum is found by forced decoding of every sequence of at most 3 tokens, EOS included."""
    model = make_model("bahdanau-gru", scale=1.0)
    words = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
    sequences = [list(s) for n in range(3) for s in itertools.product(words, repeat=n)]
    divide = length_penalty(penalty, 0.6)
    for sentence in SENTENCES[:3]:
        memory, state = model.encode(make_source([sentence]))
        rows = torch.zeros(len(sequences), dtype=torch.int64)
        forced = force(model.step, select(memory, rows), select(state, rows), make_target(sequences))
        scores = sorted((h.log_probability / divide(len(h.tokens) + 1) for h in forced), reverse=True)
        n_best = search(model, [sentence], beam=100, maximum=[3], n_best=5, penalty=divide)[0]
        assert [h.score for h in n_best] == pytest.approx(scores[:5], rel=1e-5)
        assert all(h.ended for h in n_best)


def test_other_sentences_in_a_batch_change_nothing(model: Any) -> None:
    """Whatever the batch size and the order, words are equal, and scores are equal within a relative 1e-5."""
    penalty = length_penalty("average", 0)
    in_batch = [n_best[0] for n_best in search(model, SENTENCES, penalty=penalty)]
    reversed_order = [n_best[0] for n_best in search(model, SENTENCES[::-1], penalty=penalty)][::-1]
    singly = [search(model, [sentence], penalty=penalty)[0][0] for sentence in SENTENCES]
    for expected, *hypotheses in zip(in_batch, reversed_order, singly, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.tokens == expected.tokens
            assert expected.score == pytest.approx(hypothesis.score, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("rows", "sizes"), [(0, []), (1, [1]), (3, [1, 2]), (8, [4, 4]), (9, [2, 2, 2, 3]), (13, [3, 3, 3, 4])]
)
def test_processes_get_batches_of_about_the_same_size(
    rows: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, and at most four rows at a time."""
    batches: list[int] = []

    def double(batch: Any) -> list[int]:
        batches.append(len(batch))
        return [2 * row for row in batch]

    monkeypatch.setattr(distributed, "size", lambda: 2)
    order = list(reversed(range(rows)))
    assert map_in_batches(double, order, 4) == [2 * row for row in range(rows)]
    assert batches == sizes


@pytest.mark.parametrize("beam", [1, 2, VOCABULARY])  # with the last, the first step has too few continuations
def test_a_search_begins_with_one_row_for_each_sentence(model: Any, beam: int) -> None:
    """A search that begins with `beam` equal rows would compute the same hypotheses."""
    rows: list[int] = []

    def step(memory: Any, state: Any, token: torch.Tensor) -> Any:
        rows.append(len(token))
        return model.step(memory, state, token)

    source, maximum = make_source(SENTENCES[:4]), [5] * 4
    settings: Any = {"beam": beam, "n_best": beam, "penalty": length_penalty("none", 0), "coverage": 0.0}
    with torch.inference_mode():
        best = beam_search(step, *model.encode(source), maximum=maximum, minimum=5, keep_attention=True, **settings)
    assert rows == [4, *[4 * beam] * 4]
    for sentence, hypotheses in zip(SENTENCES, best, strict=False):
        for hypothesis in hypotheses:
            memory, state = model.encode(make_source([sentence]))
            tokens = [*hypothesis.tokens, EOS] if hypothesis.ended else hypothesis.tokens
            (forced,) = force(model.step, memory, state, torch.tensor([[BOS, *tokens]]))
            assert hypothesis.log_probability == pytest.approx(forced.log_probability, abs=1e-4)


def test_beam_search_records_no_gradients() -> None:
    """Although the caller records them: a search would keep the graph of every step."""
    modes, model = [], make_model("luong")

    def step(*arguments: Any) -> Any:
        modes.append(torch.is_grad_enabled())
        return model.step(*arguments)

    memory, state = model.encode(make_source([[4, 5]]))
    penalty = length_penalty("none", 0)
    beam_search(step, memory, state, beam=2, maximum=[3], n_best=1, penalty=penalty, coverage=0, keep_attention=False)
    assert modes and not any(modes)


def test_beam_search_scores_equal_forced_decoding() -> None:
    model = make_model("luong")
    hypotheses = [n_best[0] for n_best in search(model, SENTENCES, keep_attention=True)]
    ended = [i for i, hypothesis in enumerate(hypotheses) if hypothesis.ended]
    assert len(ended) > 5
    with torch.inference_mode():
        memory, state = model.encode(make_source([SENTENCES[i] for i in ended]))
        forced = force(model.step, memory, state, make_target([hypotheses[i].tokens for i in ended]))
    for i, expected in zip(ended, forced, strict=True):
        assert hypotheses[i].tokens == expected.tokens
        assert hypotheses[i].log_probability == pytest.approx(expected.log_probability, rel=1e-4)
        assert hypotheses[i].attention is not None and expected.attention is not None
        width = len(SENTENCES[i]) + 1
        assert torch.allclose(hypotheses[i].attention[:, :width], expected.attention[:, :width], atol=1e-5, rtol=1e-4)


def test_forced_decoding_equals_forward() -> None:
    model = make_model("sutskever-lstm")
    source, target = make_source(SENTENCES), make_target(random_sentences(40, seed=21))
    log_p = model.project(model(source, target[:, :-1]).features).log_softmax(-1)
    labels = target[:, 1:]
    expected = (log_p.gather(-1, labels[..., None]).squeeze(-1) * (labels != PAD)).sum(1)
    forced = force(model.step, *model.encode(source), target)
    assert [h.log_probability for h in forced] == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_hypothesis_keeps_no_more_memory_than_its_own() -> None:
    """It may be sent to another process, which would send the tensors of which its own are views."""
    model = make_model("bahdanau-gru")
    forced = force(model.step, *model.encode(make_source(SENTENCES)), make_target([[4, 5], [6]] * 20), likeliest=2)
    for h in forced:
        for tensor in (h.log_p, h.attention, *(h.predictions or ())):
            assert tensor is not None and tensor.untyped_storage().nbytes() == tensor.nbytes


def test_n_best_is_sorted_and_distinct() -> None:
    n_best_lists = search(make_model("bahdanau-lstm", scale=1.0), SENTENCES, beam=6, n_best=6)
    for n_best in n_best_lists:
        assert len(n_best) == 6
        assert len({tuple(h.tokens) for h in n_best}) == 6
        scores = [h.score for h in n_best if h.ended]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("maximum", [1, 2, 3])
def test_ended_hypotheses_are_not_extended(maximum: int) -> None:
    """The beam of 30 is wider than the vocabulary, and still has no duplicates."""
    n_best_lists = search(
        make_model("bahdanau-gru", scale=1.0), SENTENCES[:5], beam=30, n_best=30, maximum=[maximum] * 5
    )
    for n_best in n_best_lists:
        assert len({(tuple(h.tokens), h.ended) for h in n_best}) == len(n_best) > 5
        assert all(math.isfinite(h.score) for h in n_best)


def test_there_is_a_hypothesis_even_if_none_can_end() -> None:
    model = make_model("bahdanau-gru")
    with torch.no_grad():
        model.output.bias[EOS] = -1e9
    for n_best in search(model, SENTENCES, n_best=2):
        assert len(n_best) == 2
        assert not n_best[0].ended and len(n_best[0].tokens) == 12
        assert math.isfinite(n_best[0].score)


def test_every_sentence_has_its_own_maximum_length() -> None:
    model = make_model("bahdanau-gru")
    with torch.no_grad():
        model.output.bias[EOS] = -1e9
    hypotheses = search(model, SENTENCES[:3], maximum=[2, 5, 9])
    assert [len(n_best[0].tokens) for n_best in hypotheses] == [2, 5, 9]


def test_no_hypothesis_ends_before_the_minimum_length() -> None:
    model = make_model("bahdanau-gru")
    with torch.no_grad():
        model.output.bias[EOS] = 50.0
    for n_best in [*search(model, SENTENCES[:3], minimum=4), *draw(model, SENTENCES[:3], minimum=4)]:
        assert n_best[0].ended and len(n_best[0].tokens) == 3


@pytest.mark.parametrize("penalty", ["none", "average", "gnmt"])
@pytest.mark.parametrize("n_best", [1, 2])
def test_poor_hypotheses_that_end_early_do_not_end_the_search(penalty: str, n_best: int) -> None:
    """A model is sure of nine times RIGHT and EOS; at each step, WRONG, which EOS follows, has the probability e⁻⁸."""
    right, wrong = 5, 6

    def step(memory: Any, position: torch.Tensor, token: torch.Tensor) -> Step[torch.Tensor]:
        logits = torch.full((len(token), 8), -50.0)
        logits[:, wrong] = -8.0
        logits[torch.arange(len(token)), torch.where((position == 9) | (token == wrong), EOS, right)] = 0.0
        return Step(logits, position + 1, None)

    settings: dict[str, Any] = {"penalty": length_penalty(penalty, 0.6), "coverage": 0.0, "keep_attention": False}
    position = torch.zeros(1, dtype=torch.int64)
    ((best, *_),) = beam_search(step, (), position, beam=2, maximum=[30], n_best=n_best, **settings)
    assert best.tokens == [right] * 9 and best.ended


def test_an_ensemble_of_equal_models_equals_the_model() -> None:
    model = make_model("bahdanau-gru")
    by_model, by_ensemble = search(model, SENTENCES), search(Ensemble([model, model]), SENTENCES)
    for (expected,), (hypothesis,) in zip(by_model, by_ensemble, strict=True):
        assert hypothesis.tokens == expected.tokens
        assert expected.score == pytest.approx(hypothesis.score, rel=1e-5)


def test_an_ensemble_averages_probabilities() -> None:
    models = [make_model("bahdanau-gru", seed=0), make_model("sutskever-lstm", seed=1)]
    ensemble = Ensemble(models)
    source, token = make_source(SENTENCES[:4]), torch.tensor([BOS] * 4)
    step = ensemble.step(*ensemble.encode(source), token)
    p = [model.step(*model.encode(source), token).logits.softmax(-1) for model in models]
    assert torch.allclose(step.logits.exp(), (p[0] + p[1]) / 2, atol=1e-5, rtol=1e-4)


def draw(
    model: Any, sentences: list[list[int]], *, samples: int = 1, seed: int = 3, **settings: Any
) -> list[list[Hypothesis]]:
    noise = torch.rand(len(sentences), samples, 12, generator=torch.Generator().manual_seed(seed))
    defaults: dict[str, Any] = {
        "uniform_noise": noise,
        "maximum": [12] * len(sentences),
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "keep_attention": False,
    }
    with torch.inference_mode():
        return sample(model.step, *model.encode(make_source(sentences)), **defaults | settings)


def test_sampling_follows_the_model() -> None:
    """Of 4,000 samples of the first word, each word's share is within 4 standard errors of its probability."""
    model = make_model("bahdanau-gru", scale=1.0)
    hypotheses = draw(model, SENTENCES[:1], samples=4000, maximum=[1])[0]
    first_tokens = torch.tensor([h.tokens[0] if h.tokens else EOS for h in hypotheses])
    logits = model.step(*model.encode(make_source(SENTENCES[:1])), torch.tensor([BOS])).logits[0]
    p = logits.softmax(-1)
    p[[PAD, BOS]] = 0
    p = p / p.sum()
    for token in range(VOCABULARY):
        standard_error = (p[token] * (1 - p[token]) / 4000).sqrt()
        assert abs((first_tokens == token).float().mean() - p[token]) <= 4 * standard_error


@pytest.mark.parametrize("name", ["bahdanau-gru", "luong", "sutskever-lstm", "transformer"])
def test_samples_that_have_ended_take_no_more_time(name: str) -> None:
    """Rows are left out as samples end, which changes no sample: with attention kept, all rows stay."""
    model = make_model(name)
    steps, original = list[int](), model.step

    def step_that_ends_soon(memory: Any, state: Any, token: Any) -> Any:
        steps.append(len(token))
        output = original(memory, state, token)
        output.logits[:, EOS] += 3
        return output

    model.step = step_that_ends_soon
    settings = {"maximum": [12, 9, 12] * 2, "minimum": 2, "keep_attention": False}
    sentences = [*SENTENCES, *SENTENCES][:6]
    whole = draw(model, sentences, samples=30, **settings | {"keep_attention": True})
    assert {*steps} == {180}
    steps.clear()
    left_out = draw(model, sentences, samples=30, **settings)
    assert steps[0] == 180 and steps[-1] < 90 and steps == sorted(steps, reverse=True)
    for before, after in zip(whole, left_out, strict=True):
        assert [(h.tokens, h.ended) for h in before] == [(h.tokens, h.ended) for h in after]
        expected = [h.log_probability for h in before]
        assert [h.log_probability for h in after] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_sampling_at_its_limits_is_greedy(settings: dict[str, Any]) -> None:
    model = make_model("luong")
    assert [h[0].tokens for h in draw(model, SENTENCES, **settings)] == [
        h[0].tokens for h in search(model, SENTENCES, beam=1)
    ]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-6}, {}])
def test_words_of_probability_0_are_not_drawn(settings: dict[str, Any]) -> None:
    """The largest random number, which single precision rounds to 1, does not draw them either."""
    model = make_model("luong")
    with torch.no_grad():
        model.output.bias[VOCABULARY - 1] = -1e9
    noise = torch.tensor(1 - 2**-26, dtype=torch.float64).float().expand(40, 1, 12)
    hypotheses = draw(model, SENTENCES, uniform_noise=noise, **settings)
    assert all(VOCABULARY - 1 not in h.tokens and math.isfinite(h.log_probability) for (h,) in hypotheses)
    if settings:
        assert [h.tokens for (h,) in hypotheses] == [h.tokens for (h,) in search(model, SENTENCES, beam=1)]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0, 1e-4])
@pytest.mark.parametrize("allowed", [{"may_end": True, "unknown": True}, {"may_end": False, "unknown": False}])
def test_a_single_row_is_sampled_like_several_rows(temperature: float, allowed: dict[str, bool]) -> None:
    """A single row with few symbols uses other operations. Forbidden tokens are likely here, and must not be drawn."""
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(200, 20, generator=generator)
    logits[::2, EOS] = 50.0
    logits[::3, 10:] = -math.inf
    noise = torch.cat([torch.tensor([0.0, 1.0, 1 - 2**-24]), torch.rand(197, generator=generator)])
    single, several = (TokenSampler(noise[None].expand(n, -1), temperature, 0, 1.0) for n in (1, 2))
    forbidden = {token for span in excluded_ids(**allowed) for token in range(span.start, span.stop)}
    for index, row in enumerate(logits):
        token, log_p = single.draw(row[None].clone(), index, **allowed)
        tokens, all_log_p = several.draw(row.repeat(2, 1), index, **allowed)
        assert torch.isfinite(log_p) and int(token) not in forbidden
        if index >= 3:  # the first 3 random numbers are at the limits, where rounding decides
            assert int(token) == int(tokens[0])
            torch.testing.assert_close(log_p, all_log_p[:1])
    for sampler, n in ((single, 1), (several, 2)):
        assert sampler.draw(torch.full((n, 20), math.nan), 5, **allowed)[0].tolist() == [19] * n


def test_samples_depend_on_the_seed_alone() -> None:
    model = make_model("bahdanau-gru", scale=1.0)
    tokens = [[h.tokens for h in samples] for samples in draw(model, SENTENCES, samples=2)]
    assert tokens == [[h.tokens for h in samples] for samples in draw(model, SENTENCES, samples=2)]
    assert tokens != [[h.tokens for h in samples] for samples in draw(model, SENTENCES, samples=2, seed=4)]


def test_other_sentences_in_a_batch_change_no_sample() -> None:
    """Each sentence has its own random numbers."""
    model = make_model("bahdanau-gru", scale=1.0)
    noise = torch.rand(len(SENTENCES), 2, 12, generator=torch.Generator().manual_seed(5))
    in_batch = draw(model, SENTENCES, uniform_noise=noise)
    for i, sentence in enumerate(SENTENCES):
        singly = draw(model, [sentence], uniform_noise=noise[i : i + 1])[0]
        assert [h.tokens for h in singly] == [h.tokens for h in in_batch[i]]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("broken", [slice(None), EOS])
def test_a_broken_model_still_gives_a_hypothesis(beam: int, broken: slice | int) -> None:
    """Search does not fail if logits are NaN."""
    model = make_model("bahdanau-gru")
    with torch.no_grad():
        model.output.bias[broken] = math.nan
    assert all(len(n_best) == 1 for n_best in search(model, SENTENCES[:3], beam=beam))


@pytest.mark.parametrize("size", [12, 4096, 5000])  # a short row; whole blocks; a remainder
@pytest.mark.parametrize("beam", [1, 3])
def test_the_highest_sums_equal_topk_on_long_rows(size: int, beam: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, size, generator=generator)
    x[1] = x[1].sort(descending=True).values
    x[2] = x[2].sort().values
    x[3, torch.arange(size) % 50 != 7] = -math.inf
    total = torch.randn(6 // beam, beam, generator=generator)
    total[:, 2:] = -math.inf
    sums = (x + total.view(-1, 1)).view(len(total), -1)
    for k in (1, 2, 10):
        values, index = highest_sums(x.clone(), total, k)
        assert torch.equal(values, sums.topk(k, -1).values)
        assert torch.equal(values, sums.gather(1, index))
        assert all(len(set(row)) == k for row in index.tolist())


def test_length_penalties_match_their_formulas() -> None:
    """The penalty gnmt is equation 14 of Wu et al. 2016."""
    assert length_penalty("gnmt", 0.6)(7) == pytest.approx(2**0.6)
    assert length_penalty("average", 0)(7) == 7
    with pytest.raises(InputError, match=r"^Unknown length_penalty 'gnm'; choose from none, average, gnmt\.$"):
        length_penalty("gnm", 0)


@pytest.mark.parametrize("weight", [0.0, 1e-30])
def test_the_coverage_penalty_counts_positions_without_attention(weight: float) -> None:
    """A source position whose weight is rounded to 0 is not taken for padding: it costs at least as much as 1e-30."""

    def step(memory: Any, state: torch.Tensor, token: torch.Tensor) -> Step[torch.Tensor]:
        logits = torch.full((1, VOCABULARY), -9.0)
        logits[:, EOS] = 0.0
        return Step(logits, state, torch.tensor([[1.0, weight, 0.0]]))

    mask = torch.tensor([[True, True, False]])
    settings = {"beam": 1, "maximum": [3], "n_best": 1, "penalty": length_penalty("none", 0), "keep_attention": False}
    (penalised,), (unpenalised,) = (
        beam_search(step, mask, torch.zeros(1, 1), coverage=beta, mask=mask, **settings)[0] for beta in (0.5, 0.0)
    )
    assert unpenalised.score - penalised.score >= 0.5 * -math.log(1e-30) * 0.999


def test_the_coverage_penalty_matches_its_formula() -> None:
    """The penalty adds β Σ_j log min(Σ_i α_ij, 1) to the score."""
    model = make_model("bahdanau-gru", scale=1.0)
    for (h,), sentence in zip(search(model, SENTENCES, coverage=0.4, keep_attention=True), SENTENCES, strict=True):
        if h.ended:
            assert h.attention is not None
            covered = h.attention[:, : len(sentence) + 1].sum(0).clamp(max=1)
            assert h.score == pytest.approx(h.log_probability + 0.4 * float(covered.log().sum()), rel=1e-4)
