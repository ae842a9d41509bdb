"""Tests of caption metrics, against pycocoevalcap's scores and against laws."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.evaluation.captions import check_images
from seqtool.metrics.captions import (
    NAMES,
    ORDERS,
    CaptionScorer,
    DocumentFrequencies,
    brevity,
    count_ngrams,
    rouge_l,
    tokenize_captions,
)
from seqtool.metrics.scores import System, scorers
from seqtool.runtime.files import config_directory

TOLERANCE = 1e-9
REFERENCE_NAMES = {  # our name: pycocoevalcap's, or vrama91/cider's in the case of plain_cider
    "bleu1": "Bleu_1",
    "bleu2": "Bleu_2",
    "bleu3": "Bleu_3",
    "bleu4": "Bleu_4",
    "rouge_l": "ROUGE_L",
    "cider_d": "CIDEr",
    "plain_cider": "CIDEr_plain_vrama(no clip, no gaussian)",
}
Corpus = tuple[dict[str, str], dict[str, list[str]]]


def make_corpus(images: int = 30, seed: int = 0) -> Corpus:
    """Make captions of random words, some of them empty, and one to five references for each image."""
    generator = np.random.default_rng(seed)

    def caption(shortest: int) -> str:
        return " ".join(f"w{n}" for n in generator.integers(0, 12, size=generator.integers(shortest, 12)))

    references = {str(i): [caption(1) for _ in range(generator.integers(1, 6))] for i in range(images)}
    return {image: caption(0) for image in references}, references


def score(
    hypotheses: dict[str, str],
    references: dict[str, list[str]],
    *,
    tokenize: str,
    document_frequencies: DocumentFrequencies | None = None,
) -> System:
    texts = list(references.values())
    caption_scorers = scorers(NAMES, texts, tokenize=tokenize, document_frequencies=document_frequencies)
    return System([hypotheses[image] for image in references], caption_scorers)


def scores_per_image(system: System) -> list[dict[str, float]]:
    (scorer,), (statistics,) = system.scorers, system.statistics
    return scorer.each(statistics)


def load_golden_scores(shared: Path) -> tuple[System, list[str], dict[str, Any]]:
    directory = shared / "golden"
    results = json.loads((directory / "fakecap_hyps_raw.json").read_text("utf-8"))
    hypotheses = {str(result["image_id"]): result["caption"] for result in results}
    references = json.loads((directory / "fakecap_refs_ptb.json").read_text("utf-8"))
    expected = json.loads((directory / "coco_reference_scores.json").read_text("utf-8"))
    return score(hypotheses, references, tokenize="none"), list(references), expected


def test_scores_match_pycocoevalcap(shared: Path) -> None:
    """Corpus and per-image scores equal those of pycocoevalcap 1.2 with Java, and of vrama91/cider."""
    scores, images, expected = load_golden_scores(shared)
    for name, reference_name in REFERENCE_NAMES.items():
        assert scores.values[name] == pytest.approx(expected["corpus"][reference_name], abs=TOLERANCE, rel=0)
        image_scores = [values[name] for values in scores_per_image(scores)]
        expected_scores = [expected["per_image"][reference_name][image] for image in images]
        assert image_scores == pytest.approx(expected_scores, abs=TOLERANCE, rel=0)
    assert scores.signature("bleu4") == "nrefs:5-6|tok:none|bp:closest|df:corpus|sigma:6|version:seqtool-0.1.0"


def test_edge_cases_match_pycocoevalcap(shared: Path) -> None:
    cases = json.loads((shared / "golden" / "edge_cases.json").read_text("utf-8"))
    assert len(cases) == 7
    for case in cases.values():
        scores = score({image: texts[0] for image, texts in case["res"].items()}, case["gts"], tokenize="none")
        expected = {f"bleu{n}": (case["Bleu"][n - 1], case["Bleu_per"][n - 1]) for n in ORDERS}
        expected |= {"rouge_l": (case["ROUGE_L"], case["ROUGE_L_per"]), "cider_d": (case["CIDEr"], case["CIDEr_per"])}
        for name, (corpus_score, image_scores) in expected.items():
            assert scores.values[name] == pytest.approx(corpus_score, abs=TOLERANCE, rel=0)
            values = [image[name] for image in scores_per_image(scores)]
            assert values == pytest.approx(image_scores, abs=TOLERANCE, rel=0)


def test_bleu4_without_the_brevity_penalty() -> None:
    """On short captions the two scores differ only by the factor exp(1 − reference length / length)."""
    scores = score({"1": "a b c d e"}, {"1": ["a b c d e f g"]}, tokenize="none")
    assert scores.values["bleu4_no_bp"] == pytest.approx(1, abs=1e-8)
    assert scores.values["bleu4"] == pytest.approx(scores.values["bleu4_no_bp"] * np.exp(1 - 7 / 5), rel=1e-8)


def test_order_of_images_and_references_changes_nothing() -> None:
    hypotheses, references = make_corpus()
    scores = score(hypotheses, references, tokenize="none")
    reversed_references = {image: references[image][::-1] for image in reversed(references)}
    reversed_scores = score(hypotheses, reversed_references, tokenize="none")
    assert reversed_scores.values == pytest.approx(scores.values, abs=1e-12)
    assert scores_per_image(reversed_scores)[::-1][3] == pytest.approx(scores_per_image(scores)[3], abs=1e-12)


def test_corpus_scores_are_means_over_images() -> None:
    scores = score(*make_corpus(), tokenize="none")
    for name in ("rouge_l", "cider_d", "plain_cider"):
        values = [image[name] for image in scores_per_image(scores)]
        assert scores.values[name] == pytest.approx(np.mean(values), abs=1e-12)


def test_a_caption_equal_to_its_only_reference_is_perfect() -> None:
    references = {"1": ["a dog runs on grass"], "2": ["two men sit there quietly"]}
    scores = score({image: captions[0] for image, captions in references.items()}, references, tokenize="none")
    perfect = dict.fromkeys((*NAMES[:6], "brevity_penalty", "length_ratio"), 1) | {"cider_d": 10, "plain_cider": 10}
    assert scores.values | brevity(scores.statistics[0]) == pytest.approx(perfect, abs=1e-8)


def test_ptb_tokenisation_equals_that_of_coco_caption() -> None:
    raw = ({"1": 'A man\'s "dog".', "2": "Two cats!"}, {"1": ["The man's dog."], "2": ["two cats", "Cats, two."]})
    plain = ({"1": "a man 's dog", "2": "two cats"}, {"1": ["the man 's dog"], "2": ["two cats", "cats two"]})
    ptb, none = score(*raw, tokenize="ptb"), score(*plain, tokenize="none")
    assert ptb.values == none.values
    assert ptb.signature("bleu4") == "nrefs:1-2|tok:ptb-3.4.1|bp:closest|df:corpus|sigma:6|version:seqtool-0.1.0"


def test_one_image_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "one.json").write_text('{"1": "a dog"}')
    files = [f"{name}={tmp_path / 'one.json'}" for name in ("hypotheses", "references")]
    assert cli.run(["eval", "task=captioning", *files, "tokenize=none"], config_directory()) == 0
    output = capsys.readouterr().out
    assert "cider_d      0.0000 [0.0000, 0.0000]\ncider        0.0000 [" in output
    assert caplog.messages == [
        "CIDEr is 0 with document frequencies from a single image, as every n-gram then has the weight ln 1 = 0: "
        "score more images or give document_frequencies=FILE.",
    ]
    assert "CIDEr is 0" not in output


def test_document_frequencies_of_the_scored_references_change_nothing(tmp_path: Path) -> None:
    hypotheses, references = make_corpus()
    counted = DocumentFrequencies.count(list(references.values()), tokenize="none", name="mine")
    counted.save(tmp_path / "mine.json")
    loaded = DocumentFrequencies.load(tmp_path / "mine.json")
    assert loaded == counted
    scores = score(hypotheses, references, tokenize="none", document_frequencies=loaded)
    assert scores_per_image(scores) == scores_per_image(score(hypotheses, references, tokenize="none"))
    assert scores.signature("bleu4") == "nrefs:1-5|tok:none|bp:closest|df:mine(30)|sigma:6|version:seqtool-0.1.0"


def test_document_frequencies_of_another_corpus_weight_words() -> None:
    """CIDEr of one image is computed by hand: of 10 documents 10 contain 'a', 2 contain 'dog' and none 'runs'."""
    frequencies = DocumentFrequencies(10, {"a": 10, "dog": 2, "x y": 5}, "none", "other")
    scores = score({"1": "a dog"}, {"1": ["dog runs"]}, tokenize="none", document_frequencies=frequencies)
    dog, runs = np.log(10) - np.log(2), np.log(10)
    assert scores.values["plain_cider"] == pytest.approx(10 / 4 * dog / np.hypot(dog, runs), abs=1e-12)
    assert scores.values["cider_d"] == scores.values["plain_cider"]  # nothing to clip, the same length
    assert scores.scorers[0].warnings() == []


def test_document_frequencies_must_be_tokenised_alike() -> None:
    frequencies = DocumentFrequencies(10, {}, "ptb", "coco")
    with pytest.raises(
        InputError, match=r"^The document frequencies coco were counted with tokenize=ptb: they cannot "
    ):
        score({"1": "a"}, {"1": ["a"]}, tokenize="none", document_frequencies=frequencies)


@pytest.mark.parametrize(
    "content",
    [
        *("x", "[]", "{}", '{"images": 1, "tokenize": "ptb", "document_frequencies": []}'),
        '{"images": 0, "tokenize": "ptb", "document_frequencies": {}}',
        *(
            f'{{"images": {images}, "tokenize": "ptb", "document_frequencies": {{"a": {count}}}}}'
            for images, count in ((2, 3), (2, 0), (2, -1), (2, 10**30), (10**30, 10**30))
        ),
    ],
)
def test_files_without_document_frequencies_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "df.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"df\.json holds no document frequencies: expected a JSON object with images"):
        DocumentFrequencies.load(file)
    with pytest.raises(InputError, match=r"no\.json does not exist\.$"):
        DocumentFrequencies.load(tmp_path / "no.json")


def test_validation_scores_equal_evaluation_scores() -> None:
    """Validation makes one scorer for all its scores, without ROUGE-L."""
    hypotheses, references = make_corpus()
    scorer = CaptionScorer(list(references.values()), tokenize="none", rouge=False)
    for seed in (1, 2):
        generator = np.random.default_rng(seed)
        mixed = {image: hypotheses[str(i)] for image, i in zip(references, generator.permutation(30), strict=True)}
        expected = score(mixed, references, tokenize="none")
        scores = scorer.scores(scorer.statistics(list(mixed.values())))
        assert np.isnan(scores.pop("rouge_l"))
        assert scores == {name: value for name, value in expected.values.items() if name != "rouge_l"}


def test_rouge_l_matches_the_table_of_the_textbook() -> None:
    hypotheses, references = make_corpus(60, seed=4)

    def common_length(a: list[str], b: list[str]) -> int:
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
        return table[-1][-1]

    for image, hypothesis in hypotheses.items():
        words = hypothesis.split(" ")
        split_references = [reference.split(" ") for reference in references[image]]
        counts = [common_length(words, reference_words) for reference_words in split_references]
        precision = max(counts) / len(words)
        recall = max(count / len(reference) for count, reference in zip(counts, split_references, strict=True))
        # The F-measure with beta = 1.2, as in coco-caption: 1 + beta² = 2.44
        expected = 2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0
        assert rouge_l(hypothesis, references[image]) == pytest.approx(expected, abs=1e-12)


def test_ngrams_are_counted_for_each_caption() -> None:
    captions = [caption.split() for captions in make_corpus()[1].values() for caption in captions]
    flat = [word for words in captions for word in words]
    for n, counts in zip(ORDERS, count_ngrams(flat, np.array([len(words) for words in captions])), strict=True):
        ngrams = [tuple(flat[i : i + n]) for i in counts.example_start.tolist()]
        assert len(set(ngrams)) == len(ngrams)
        actual: list[dict[Any, int]] = [{} for _ in captions]
        entries = zip(counts.caption.tolist(), counts.ngram.tolist(), counts.count.tolist(), strict=True)
        for caption, ngram, count in entries:
            actual[caption][ngrams[ngram]] = count
        for i, words in enumerate(captions):
            assert actual[i] == Counter(tuple(words[j : j + n]) for j in range(len(words) - n + 1))


def test_hypotheses_and_references_need_the_same_images() -> None:
    with pytest.raises(InputError, match=r"^the references has no images: there is nothing to score\.$"):
        check_images({}, {})
    with pytest.raises(InputError, match=r"^r\.json has no caption for image 2: every image needs at least one\.$"):
        check_images({"1": "a"}, {"1": ["a"], "2": []}, references_name="r.json")
    with pytest.raises(
        InputError, match=r"^h has no caption for 2 images, such as 2, of r: every image must have one\.$"
    ):
        check_images({"1": "a"}, {"1": ["a"], "2": ["b"], "3": ["c"]}, hypotheses_name="h", references_name="r")
    with pytest.raises(InputError, match=r"^h has captions for image 9 that r does not have: remove them, or give "):
        check_images({"1": "a", "9": "b"}, {"1": ["a"]}, hypotheses_name="h", references_name="r")


def test_an_unknown_tokenisation_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Unknown tokenize '13a'; choose from ptb, char, none\.$"):
        tokenize_captions(["a"], "13a")
