"""Tests of translation and alignment metrics, against sacreBLEU and against cases computed by hand."""

import gzip
import json
import os
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import sacrebleu
from evaluation_settings import evaluation_settings
from sacrebleu.significance import PairedTest

from seqtool.data.text.alignment import diagonal, parse_pharaoh
from seqtool.errors import InputError
from seqtool.evaluation import Output, Segment
from seqtool.evaluation.translations import TranslationEvaluation
from seqtool.metrics.alignment import AlignmentScores, alignment_error_rate, crossings
from seqtool.metrics.bootstrap import SAMPLES, Estimate, bootstrap
from seqtool.metrics.scores import SCORES, Comparison, Statistics, System, score_names, scorers
from seqtool.metrics.translation import Bleu, bleu_by_length, bleu_parts, check_lengths, length_bins, length_gaps

NAMES = score_names("translation")
EDGES = (8, 14)  # the bins are 1 to 8, 9 to 14, and 15 or more source words
WORDS = [
    "a",
    "big",
    "cat",
    "sees",
    "the",
    "small",
    "dog",
    "near",
    "old",
    "house",
    "Runs",
    ",",
    "quickly",
    "!",
]


def make_corpus(sentences: int = 120, noise: float = 0.3) -> tuple[list[str], list[str], list[str]]:
    """Make hypotheses, and two references for each hypothesis, from random words."""
    generator = np.random.default_rng(3)

    def change(words: list[str]) -> list[str]:
        return [str(generator.choice(WORDS)) if generator.random() < noise else word for word in words]

    lines = [[str(word) for word in generator.choice(WORDS, size=generator.integers(2, 25))] for _ in range(sentences)]
    texts = [[" ".join(change(line)) for line in lines] for _ in range(3)]
    return texts[0], texts[1], texts[2]


def evaluate(
    hypotheses: list[str],
    references: list[list[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    samples: int = SAMPLES,
) -> System:
    """Score hypotheses against one or more whole texts of references."""
    text_scorers = scorers(NAMES, list(zip(*references, strict=True)), tokenize=tokenize, lowercase=lowercase)
    return System(hypotheses, text_scorers, samples=samples)


def compare(first: list[str], second: list[str], references: list[list[str]], samples: int = SAMPLES) -> Comparison:
    return Comparison(*(evaluate(lines, references, samples=samples) for lines in (first, second)))


def make_evaluation(
    hypotheses: list[str], references: list[str], sources: list[str], edges: tuple[int, ...]
) -> TranslationEvaluation:
    return TranslationEvaluation(
        settings=evaluation_settings(length_bins=list(edges)),
        segments=[Segment(i, [line], source) for i, (line, source) in enumerate(zip(references, sources, strict=True))],
        outputs=[Output("system", dict(enumerate(hypotheses)))],
        options={"tokenize": "13a", "lowercase": False},
    )


def bleu_statistics(hypotheses: list[str], references: list[list[str]]) -> Statistics:
    return evaluate(hypotheses, references).statistics[0]


def bleu_interval(statistics: Statistics, samples: int = SAMPLES) -> Estimate:
    return bootstrap(lambda i: bleu_parts(statistics[i]).score, [np.arange(len(statistics))], samples)


@pytest.mark.parametrize("tokenize", ["13a", "intl", "none", "char"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("references", [1, 2])
def test_scores_match_sacrebleu(tokenize: str, lowercase: bool, references: int) -> None:
    hypotheses, *alternatives = make_corpus(40)
    reference_texts = alternatives[:references]
    bleu = sacrebleu.corpus_bleu(hypotheses, reference_texts, tokenize=tokenize, lowercase=lowercase).score
    result = evaluate(hypotheses, reference_texts, tokenize=tokenize, lowercase=lowercase)
    assert result.values["bleu"] == bleu
    interval = result.estimates["bleu"]
    assert interval.value == bleu
    assert interval.low < bleu < interval.high
    assert [SCORES[name].label for name in result.values] == ["BLEU", "chrF2", "TER"]
    assert result.values["ter"] == sacrebleu.corpus_ter(hypotheses, reference_texts).score
    signature = f"nrefs:{references}|case:{'lc' if lowercase else 'mixed'}|eff:no|tok:{tokenize}"
    assert result.signature("bleu").startswith(signature)
    if not lowercase:
        assert result.values["chrf"] == sacrebleu.corpus_chrf(hypotheses, reference_texts).score


@pytest.mark.parametrize("references", [1, 2])
def test_sentence_scores_match_sacrebleu(references: int) -> None:
    """BLEU uses only the n-gram orders that a short sentence has, as sacreBLEU advises."""
    hypotheses, *alternatives = make_corpus(40)
    hypotheses[0] = "a cat"
    scores = evaluate(hypotheses, alternatives[:references]).each()
    for i, (hypothesis, *texts) in enumerate(zip(hypotheses, *alternatives[:references], strict=True)):
        assert scores[i]["scores"] == {
            "BLEU": sacrebleu.sentence_bleu(hypothesis, texts).score,
            "chrF2": sacrebleu.sentence_chrf(hypothesis, texts).score,
            "TER": sacrebleu.sentence_ter(hypothesis, texts).score,
        }


def test_perfect_and_empty_translations() -> None:
    references = ["Tengo un gato grande.", "No tienes una casa pequeña."]
    perfect = evaluate(references, [references])
    assert list(perfect.values.values()) == pytest.approx([100, 100, 0])
    assert perfect.estimates["bleu"].low == perfect.estimates["bleu"].high == pytest.approx(100)
    nothing = evaluate(["", ""], [references])
    assert list(nothing.values.values()) == [0, 0, 100]


def test_statistics_of_parts_give_their_scores() -> None:
    hypotheses, first, second = make_corpus()
    statistics = bleu_statistics(hypotheses, [first, second])
    for part in (slice(0, 1), slice(5, 40), slice(None)):
        expected = sacrebleu.corpus_bleu(hypotheses[part], [first[part], second[part]]).score
        assert bleu_parts(statistics[part]).score == pytest.approx(expected, rel=1e-12)


def test_length_bins_hold_every_sentence_once() -> None:
    sources = [" ".join(["w"] * length) for length in (0, 1, 8, 9, 14, 15, 40)]
    bins = length_bins(sources, edges=EDGES)
    assert [(label, indices.tolist()) for label, indices in bins] == [
        ("≤8", [0, 1, 2]),
        ("9–14", [3, 4]),
        ("≥15", [5, 6]),
    ]
    assert [label for label, _ in length_bins(sources, edges=(10,))] == ["≤10", "≥11"]


def test_bleu_by_length_equals_the_bleu_of_each_bin() -> None:
    hypotheses, references, sources = make_corpus()
    statistics = bleu_statistics(hypotheses, [references])
    scores = bleu_by_length(statistics, sources, edges=EDGES)
    assert sum(score.sentences for score in scores) == len(sources)
    for score, (label, indices) in zip(scores, length_bins(sources, edges=EDGES), strict=True):
        parts = [[text[i] for i in indices] for text in (hypotheses, references)]
        assert score.label == label
        assert score.bleu is not None
        assert score.bleu.value == pytest.approx(sacrebleu.corpus_bleu(parts[0], [parts[1]]).score)
        assert score.bleu.low < score.bleu.value < score.bleu.high
    (short, _, long) = bleu_by_length(statistics[:1], ["one two"], edges=EDGES)
    assert (short.sentences, long.sentences, long.bleu) == (1, 0, None)


def test_intervals_are_seeded_and_close_to_those_of_sacrebleu() -> None:
    hypotheses, references, _ = make_corpus()
    statistics = bleu_statistics(hypotheses, [references])
    interval = bleu_interval(statistics)
    assert interval == bleu_interval(statistics)
    assert interval != bleu_interval(statistics, samples=500)
    expected = sacrebleu.BLEU(force=True).corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert (interval.high - interval.low) / 2 == pytest.approx(expected._ci, rel=0.1)


def test_intervals_cover_the_truth_as_often_as_stated() -> None:
    generator = np.random.default_rng(0)
    counts = np.array([10, 10, 6, 4, 3, 2, 10, 9, 8, 7])
    noise = generator.integers(-2, 3, size=(4000, 4))
    population = np.tile(counts, (4000, 1))
    population[:, 2:6] += noise
    truth = bleu_parts(population).score
    covered = 0
    for _ in range(100):
        sample = population[generator.integers(4000, size=100)]
        interval = bleu_interval(sample, samples=200)
        covered += interval.low <= truth <= interval.high
    assert 88 <= covered <= 100


def test_the_paired_bootstrap_matches_sacrebleu() -> None:
    hypotheses, references, worse = make_corpus()
    pairs = zip(hypotheses, references, strict=True)
    better = [hypothesis if i % 2 else reference for i, (hypothesis, reference) in enumerate(pairs)]
    result = compare(worse, better, [references])
    assert [difference.name for difference in result.differences] == ["BLEU", "chrF2", "TER"]
    bleu = result.differences[0]
    assert bleu.baseline.value == sacrebleu.corpus_bleu(worse, [references]).score
    assert bleu.system.value == sacrebleu.corpus_bleu(better, [references]).score
    assert bleu.baseline.low < bleu.baseline.value < bleu.baseline.high < bleu.system.low
    assert bleu.p_value < 0.01
    assert "bs:1000|seed:12345" in bleu.signature
    assert compare(hypotheses, worse, [references], samples=200).differences[0].p_value > 0.05
    assert result.differences[0] == compare(worse, better, [references]).differences[0]
    assert "| BLEU " in result.text()
    assert bleu.signature in result.text()
    metrics = {"BLEU": sacrebleu.BLEU(force=True), "chrF": sacrebleu.CHRF(), "TER": sacrebleu.TER()}
    named_systems = [("baseline", worse), ("system", better)]
    _, expected = PairedTest(named_systems, metrics, [references], test_type="bs", n_samples=1000)()
    p_values = [difference.p_value for difference in result.differences]
    assert p_values == [expected[name][1].p_value for name in ("BLEU", "chrF2", "TER")]
    assert json.loads(json.dumps(result.record()))["differences"][0]["p_value"] == bleu.p_value


def test_equal_systems_do_not_differ() -> None:
    hypotheses, references, _ = make_corpus(30)
    differences = compare(hypotheses, hypotheses, [references], samples=20).differences
    assert [difference.p_value for difference in differences] == [1, 1, 1]
    upper_case = [line.upper() for line in hypotheses]  # TER ignores case
    bleu, _, ter = compare(hypotheses, upper_case, [references], samples=200).differences
    assert bleu.p_value < 0.01 and ter.p_value == 1


def test_gaps_between_systems_grow_with_length() -> None:
    hypotheses, references, sources = make_corpus(200)
    (_, short), _, (_, long) = length_bins(sources, edges=EDGES)
    long_sentences = set(long.tolist())
    system = [references[i] if i in long_sentences else hypothesis for i, hypothesis in enumerate(hypotheses)]
    statistics = [bleu_statistics(texts, [references]) for texts in (hypotheses, system)]
    gaps = length_gaps(statistics[0], statistics[1], short, long, samples=200)
    growth = gaps["growth"]
    assert gaps["short"] == Estimate(0, 0, 0)
    assert gaps["long"].value == pytest.approx(100 - bleu_parts(statistics[0][long]).score)
    assert growth.value == pytest.approx(gaps["long"].value - gaps["short"].value)
    assert growth.low is not None and growth.high is not None and 0 < growth.low < growth.value < growth.high
    opposite = length_gaps(statistics[1], statistics[0], short, long, samples=200)["growth"]
    assert opposite.value == pytest.approx(-growth.value)
    assert opposite.low == pytest.approx(-growth.high)


def test_alignment_error_rate() -> None:
    # by hand: A = 4 links, S = 3; A∩S = 2, A∩P = 3 (the possible link and the two sure ones): 1 - 5/7
    gold = parse_pharaoh("0-0 1-2 2-1 1?1")
    assert alignment_error_rate([{(0, 0), (2, 1), (1, 1), (2, 2)}], [gold]) == pytest.approx(1 - 5 / 7)
    assert alignment_error_rate([gold[0]], [gold]) == 0
    assert alignment_error_rate([gold[0] | gold[1]], [gold]) == 0  # possible links cost nothing
    assert alignment_error_rate([set()], [gold]) == 1
    assert alignment_error_rate([{(5, 5)}], [gold]) == 1
    assert alignment_error_rate([], []) == 0
    # over a corpus the counts are summed, not the rates averaged
    assert alignment_error_rate([gold[0], set()], [gold, gold]) == pytest.approx(1 - 6 / 9)


def test_crossing_links_are_counted() -> None:
    gold = parse_pharaoh("0-0 2-1 1-2 3-3")  # a big cat . → un gato grande .
    assert crossings([gold[0]], [gold]) == (1, 1)
    assert crossings([diagonal(4, 4)], [gold]) == (0, 1)
    assert crossings([{(0, 0), (1, 1), (1, 2)}], [gold]) == (0, 1)  # two links to one word do not cross
    assert crossings([{(2, 1)}], [gold]) == (0, 1)
    assert crossings([gold[0], diagonal(4, 4)], [gold, gold]) == (1, 2)
    assert crossings([gold[0]], [parse_pharaoh("0-0 1-1 3-2 1-3")]) == (0, 0)


def test_crossings_of_an_adjective_and_its_noun() -> None:
    """With agreeing=True, only swaps count whose second word has a possible link to the source of the first word."""
    gold = parse_pharaoh("1-0 0-1 1?1 3-2 2-3")  # big cat, saw him → gato grande, lo vio
    assert crossings([gold[0]], [gold]) == (2, 2)
    assert crossings([gold[0]], [gold], agreeing=True) == (1, 1)
    assert crossings([diagonal(4, 4)], [gold], agreeing=True) == (0, 1)


def test_texts_that_are_not_parallel_are_refused() -> None:
    with pytest.raises(InputError) as error:
        check_lengths(["a"] * 999, [["a"] * 999, ["a"] * 1000], name="out.de", reference_names=["r1.de", "r2.de"])
    assert str(error.value) == ("out.de has 999 lines but r2.de has 1,000: they must be parallel, line by line.")
    with pytest.raises(InputError, match=r"^out\.de has no lines: there is nothing to score\.$"):
        check_lengths([], [[]], name="out.de", reference_names=["r1.de"])
    check_lengths(["a"], [["b"]], name="out.de", reference_names=["r1.de"])


def test_an_unknown_tokeniser_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Unknown tokeniser '13b'; choose from none, zh, 13a, intl, char, "):
        evaluate(["a"], [["a"]], tokenize="13b")


def test_a_tokeniser_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing_package(**settings: object) -> None:
        raise RuntimeError("Please install mecab")

    raise_missing_package.TOKENIZERS = ["ja-mecab"]  # type: ignore[attr-defined]
    monkeypatch.setattr("seqtool.metrics.translation.BLEU", raise_missing_package)
    with pytest.raises(InputError) as error:
        Bleu([["a"]], tokenize="ja-mecab", lowercase=False)
    assert str(error.value) == ("The tokeniser 'ja-mecab' needs more packages: pip install 'sacrebleu[ja]'.")


def test_a_tokeniser_that_cannot_be_downloaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unreachable(**settings: object) -> None:
        raise URLError(ConnectionRefusedError(111, "Connection refused"))

    raise_unreachable.TOKENIZERS = ["flores200"]  # type: ignore[attr-defined]
    monkeypatch.setattr("seqtool.metrics.translation.BLEU", raise_unreachable)
    with pytest.raises(InputError) as error:
        Bleu([["a"]], tokenize="flores200", lowercase=False)
    expected = (
        "The tokeniser 'flores200' cannot be downloaded (Connection refused): "
        "copy ~/.sacrebleu/models from another machine."
    )
    assert str(error.value) == expected


def test_an_evaluation_is_written_as_text_and_json() -> None:
    hypotheses, references, sources = make_corpus(60)
    system = evaluate(hypotheses, [references])
    result = make_evaluation(hypotheses, references, sources, (8, 14, 100))
    lines = result.text().splitlines()
    assert lines[0].startswith("| score | 60 sentences")
    assert lines[2].startswith(f"| BLEU  | {system.values['bleu']:.2f} [{system.estimates['bleu'].low:.2f}, ")
    assert lines[11].startswith("| ≥101         | 0         | - ")
    assert len({len(line) for line in lines[:5]}) == 1
    assert lines[-3:] == [f"{SCORES[name].label}: {system.signature(name)}" for name in NAMES]
    record = json.loads(json.dumps(result.record()))["system"]
    assert record["sentences"] == 60
    assert record["by_length"][-1] == {"label": "≥101", "sentences": 0, "bleu": None}


def test_bleu_of_a_system_that_stops_early_falls_with_length() -> None:
    directory = Path(os.environ.get("SEQTOOL_SHARED", Path(__file__).parents[2] / "../shared")) / "data/multi30k"
    files = [directory / "val.en.gz", directory / "val.de.gz"]
    if not all(file.exists() for file in files):
        pytest.skip(f"needs Multi30k's validation set in {directory}")
    sources, references = (gzip.decompress(file.read_bytes()).decode().split("\n")[:300] for file in files)
    hypotheses = [" ".join(line.split()[:12]) for line in references]  # a system that stops at twelve words
    statistics = evaluate(hypotheses, [references]).statistics[0]
    short, _, long = (score.bleu for score in bleu_by_length(statistics, sources, edges=EDGES))
    assert short is not None
    assert long is not None
    assert short.low > long.high


def test_swaps_are_reported_if_there_are_any() -> None:
    rates = {"aer": 0.1, "aer_uniform": 0.5, "aer_diagonal": 0.4}
    without_swaps = AlignmentScores(**rates, crossed=0, swaps=0, crossed_agreeing=0, swaps_agreeing=0)
    assert without_swaps.notes() == [] and without_swaps.text().endswith("|") and "0.100" in without_swaps.text()
    with_swaps = AlignmentScores(**rates, crossed=1, swaps=4, crossed_agreeing=0, swaps_agreeing=0)
    assert with_swaps.notes() == ["Swapped neighbours whose links cross: 1 of 4 (25.0%)"]
