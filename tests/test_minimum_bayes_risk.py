"""Tests of `mbr`: texts are chosen from a beam by their mean score against samples."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.decoding.batching import DecodeSettings
from seqtool.decoding.common import Hypothesis
from seqtool.errors import InputError
from seqtool.metrics.captions import CaptionScorer, DocumentFrequencies
from seqtool.metrics.translation import Bleu, make_chrf, make_ter
from seqtool.predict.captioner import Captioner
from seqtool.predict.minimum_bayes_risk import MinimumBayesRisk
from seqtool.predict.translator import Translator
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory

SENTENCES = ["I have a big cat.", "She sees the house, but not the dogs.", "", "My friends work.", "The garden."]
MACHINE: dict[str, Any] = {"device": "cpu", "threads": 1}
TEXTS = ["a dog runs in the grass", "a brown dog runs in the grass", "a man holds a ⁇", "a dog sits", ""]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


def run(*arguments: str) -> int:
    return cli.run([*arguments, "device=cpu", "threads=1"], config_directory())


def risk(mbr: str, task: str, **settings: Any) -> MinimumBayesRisk:
    names = DecodeSettings.__dataclass_fields__
    values = {name: value for name, value in defaults("decoding").items() if name in names}
    return MinimumBayesRisk.of(
        DecodeSettings(**values | settings | {"mbr": mbr}), task, lambda ids: TEXTS[ids[0]], None
    )


def hypotheses(*numbers: int, cut: Sequence[int] = ()) -> list[Hypothesis]:
    return [Hypothesis([number], -1.0, -1.0, None, ended=number not in cut) for number in numbers]


def load_translator(**settings: Any) -> Translator:
    return seqtool.load("builtin/words", **MACHINE, mbr="bleu", mbr_samples=12, max_length=12, **settings)


def pictures(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(3).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8))


WEIGHTED: dict[str, list[tuple[float, Any]]] = {
    "bleu": [(0.01, Bleu)],
    "chrf": [(0.01, make_chrf)],
    "bleu+0.5*ter": [(0.01, Bleu), (-0.005, make_ter)],
}


@pytest.mark.parametrize("mbr", WEIGHTED)
def test_the_expected_score_is_the_mean_of_single_references(mbr: str) -> None:
    samples = [0, 1, 1, 3, 2, 1]
    ranked = risk(mbr, "translation").rank(hypotheses(3, 0, 1), hypotheses(*samples))
    assert [hypothesis.score for hypothesis in ranked] == sorted((h.score for h in ranked), reverse=True)
    for hypothesis in ranked:
        expected = 0.0
        for weight, make in WEIGHTED[mbr]:
            scorer = make([[TEXTS[sample]] for sample in samples], tokenize="13a", lowercase=False)
            rows = scorer.each(scorer.statistics([TEXTS[hypothesis.tokens[0]]] * len(samples)))
            expected += weight * float(np.mean([value for row in rows for value in row.values()]))
        assert hypothesis.score == pytest.approx(expected)


def test_the_own_log_probability_can_be_added() -> None:
    """It can put a text first that has a lower expected score, and stands alone in `mbr=log_p`."""
    found = [
        hypothesis._replace(log_probability=log_p)
        for hypothesis, log_p in zip(hypotheses(0, 1), (-9.0, -2.0), strict=True)
    ]
    expected = {h.tokens[0]: h.score for h in risk("bleu", "translation").rank(found, hypotheses(0, 0, 1))}
    assert expected[0] > expected[1]
    for ranked in (risk(f"bleu+{share}*log_p", "translation").rank(found, hypotheses(0, 0, 1)) for share in (0.01, 1)):
        assert [h.score for h in ranked] == sorted((h.score for h in ranked), reverse=True)
    assert [(h.tokens[0], h.score) for h in ranked] == [
        (1, pytest.approx(expected[1] - 2)),
        (0, pytest.approx(expected[0] - 9)),
    ]
    assert [h.score for h in risk("log_p", "captioning").rank(found, hypotheses(0))] == [-2.0, -9.0]


def test_rare_words_count_more_with_document_frequencies() -> None:
    """Expected CIDEr-D is that of the samples as references; frequencies are those of the file."""
    corpus = [["a dog runs in the grass", "a dog sits"], ["a cat runs in the grass"], ["a brown horse"], ["the sea"]]
    frequencies = DocumentFrequencies.count(corpus, tokenize="ptb", name="train")
    frequencies.save(Path("frequencies.json"))
    samples = [1, 0, 0, 3]
    expected = CaptionScorer([[TEXTS[i] for i in samples]], tokenize="ptb", document_frequencies=frequencies)
    weighted = risk("cider_d", "captioning", mbr_frequencies="frequencies.json").rank(
        hypotheses(0, 1, 3), hypotheses(*samples)
    )
    for hypothesis in weighted:
        (row,) = expected.each(expected.statistics([TEXTS[hypothesis.tokens[0]]]))
        assert hypothesis.score == pytest.approx(row["cider_d"])
    equal = risk("cider_d", "captioning").rank(hypotheses(0, 1, 3), hypotheses(*samples))
    assert {h.tokens[0]: round(h.score, 6) for h in equal} != {h.tokens[0]: round(h.score, 6) for h in weighted}
    (same,) = risk("cider_d", "captioning").rank(hypotheses(0), hypotheses(0))
    assert same.score == pytest.approx(10)


def test_unknown_words_empty_texts_and_texts_that_were_cut_off() -> None:
    """What is unknown equals nothing, not even itself. Hypotheses that did not end come last; equals keep order."""
    for task, mbr, best in (("translation", "bleu", 1), ("captioning", "cider_d", 10), ("captioning", "rouge_l", 1)):
        (unknown,) = risk(mbr, task).rank(hypotheses(2), hypotheses(2))
        (known,) = risk(mbr, task).rank(hypotheses(1), hypotheses(1))
        assert unknown.score < 0.95 * best and known.score == pytest.approx(best)
        assert len(risk(mbr, task).rank(hypotheses(4, 0), hypotheses(4, 1))) == 2
    ranked = risk("bleu", "translation").rank(hypotheses(0, 1, 3, cut=[0]), hypotheses(0, 0))
    assert [hypothesis.tokens[0] for hypothesis in ranked] == [1, 3, 0]
    assert [h.tokens[0] for h in risk("bleu", "translation").rank(hypotheses(0, 1), hypotheses(4))] == [0, 1]


def test_translations_are_chosen_from_the_beam() -> None:
    """They are those of the search in another order, whatever the batches, with the search's log-probabilities."""
    search = seqtool.load("builtin/words", **MACHINE, beam=6, n_best=6, max_length=12)
    translator = load_translator(beam=6, n_best=6)
    found, chosen = search.hypotheses(SENTENCES), translator.hypotheses(SENTENCES, attention=True, likeliest=2)
    for before, after in zip(found, chosen, strict=True):
        by_text = {translation.text: translation for translation in before}
        assert {translation.text for translation in after} == by_text.keys()
        for translation in after:
            assert translation.log_probability == pytest.approx(by_text[translation.text].log_probability, abs=1e-5)
            assert translation.text == "" or (translation.predicted and translation.attention is not None)
        ended = [translation.score for translation in after if translation.ended]
        assert ended == sorted(ended, reverse=True) and all(0 <= score < 1 + 1e-9 for score in ended if before[0].text)
    for settings in ({"batch_size": 1}, {"batch_size": 2}, {"n_best": 1}):
        alone = load_translator(**{"beam": 6, "n_best": 6} | settings).hypotheses(SENTENCES)
        assert [n_best[0].text for n_best in alone] == [n_best[0].text for n_best in chosen]
    samples = replace(search.settings, sample=True, n_best=12)
    drawn = Translator.load("builtin/words", **MACHINE, **vars(samples))
    (texts,) = [[translation.text for translation in n_best] for n_best in drawn.hypotheses(SENTENCES[:1])]
    best = max(chosen[0], key=lambda translation: (translation.ended, translation.score))
    scorer = Bleu([[text] for text in texts], tokenize="13a", lowercase=False)
    rows = scorer.each(scorer.statistics([best.text] * len(texts)))
    assert best.score == pytest.approx(np.mean([row["bleu"] for row in rows]) / 100)


def test_a_forced_beginning_keeps_its_numbers() -> None:
    search = seqtool.load("builtin/words", **MACHINE, beam=4, n_best=4, max_length=12)
    (found,) = search.hypotheses(["The big cat sleeps."], prefixes=["El gato"])
    (chosen,) = load_translator(beam=4, n_best=4).hypotheses(["The big cat sleeps."], prefixes=["El gato"])
    wholes = {translation.text: translation.whole for translation in found}
    assert all(text.startswith("El gato") for text in wholes)
    for translation in chosen:
        before, after = wholes[translation.text], translation.whole
        assert before is not None and after is not None
        assert after[:2] == pytest.approx(before[:2], abs=1e-5)
        assert after.score_with_prefix == translation.score  # which is that of the whole text
    ended = [translation.score for translation in chosen if translation.ended]
    assert ended == sorted(ended, reverse=True)


def test_captions_and_ensembles() -> None:
    images = pictures(5)
    captioner = Captioner.load("builtin/soft", **MACHINE, beam=4, n_best=4, mbr="cider_d", mbr_samples=8, max_length=15)
    search = Captioner.load("builtin/soft", **MACHINE, beam=4, n_best=4, max_length=15)
    for before, after in zip(search.describe(images), captioner.describe(images), strict=True):
        assert {caption.text for caption in before} == {caption.text for caption in after}
        assert after[0].attention is not None
        ended = [caption.score for caption in after if caption.ended]
        assert ended == sorted(ended, reverse=True) and all(0 <= score <= 10 for score in ended)
    alone = Captioner.load("builtin/soft", **MACHINE, beam=4, mbr="cider_d", mbr_samples=8, max_length=15, batch_size=1)
    assert alone.caption(images) == [n_best[0].text for n_best in captioner.describe(images)]
    both = Captioner.load(["builtin/soft", "builtin/hard"], **MACHINE, mbr="bleu4", mbr_samples=4, max_length=9)
    assert len(both.caption(images[:2])) == 2


def test_the_settings_stand_in_an_evaluation(capsys: Capture) -> None:
    Path("in.en").write_text("\n".join(SENTENCES[:2]) + "\n")
    Path("in.es").write_text("Tengo un gato grande.\nVe la casa, pero no los perros.\n")
    arguments = ["eval", "checkpoint=builtin/words", "sources=in.en", "references=in.es", "mbr=chrf", "bootstrap=0"]
    assert run(*arguments) == 0
    heading = capsys.readouterr().out.splitlines()[1]
    assert "mbr=chrf mbr_samples=60" in heading and "seed=1" in heading
    assert run(*arguments, "mbr_samples=7", "format=json") == 0
    decoding = json.loads(capsys.readouterr().out)["decoding"]
    assert (decoding["mbr"], decoding["mbr_samples"]) == ("chrf", 7) and "mbr_frequencies" not in decoding
    assert run(*arguments[:-2], "bootstrap=0", "format=json") == 0
    assert not {"mbr", "mbr_samples", "mbr_frequencies"} & json.loads(capsys.readouterr().out)["decoding"].keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mbr": "bleu", "sample": True}, r"mbr= chooses from a beam: leave out sample=true"),
        ({"mbr": "bleu", "beam": 1}, r"mbr= chooses from a beam: .*set beam to 2 or more"),
        ({"mbr": "cider_d"}, r"mbr=cider_d is no score of translation; choose from bleu, chrf, ter"),
        ({"mbr": "0*bleu"}, r"mbr: the weight of bleu must be a number other than 0, not 0"),
        ({"mbr": "bleu+-1*bleu"}, r"mbr=bleu\+-1\*bleu: the weights of bleu add up to 0: leave it out"),
        ({"mbr": "bleu", "mbr_frequencies": "x.json"}, r"mbr_frequencies=… is for mbr=cider_d or plain_cider"),
        ({"mbr_samples": 9}, r"mbr_samples= can only be given with mbr="),
        ({"mbr": "bleu", "mbr_samples": 0}, r"mbr_samples must be at least 1, not 0"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        seqtool.load("builtin/words", **MACHINE, **settings)


def test_files_of_frequencies(capsys: Capture) -> None:
    """A file that is missing or holds something else, and an output that would replace it, are named."""
    with pytest.raises(InputError, match=r"absent\.json"):
        Captioner.load("builtin/soft", **MACHINE, mbr="cider_d", mbr_frequencies="absent.json")
    Path("frequencies.json").write_text("[]\n")
    for content in ("[]", '{"images": 3, "tokenize": "x", "document_frequencies": {}}'):
        Path("frequencies.json").write_text(content)
        with pytest.raises(InputError, match=r"frequencies\.json holds no document frequencies"):
            Captioner.load("builtin/soft", **MACHINE, mbr="cider_d", mbr_frequencies="frequencies.json")
    DocumentFrequencies.count([["a dog"]], tokenize="ptb", name="one").save(Path("frequencies.json"))
    with pytest.raises(InputError, match=r"frequencies\.json: all n-grams of a single image have the weight 0"):
        Captioner.load("builtin/soft", **MACHINE, mbr="cider_d", mbr_frequencies="frequencies.json")
    Path("frequencies.json").write_text("[]\n")
    arguments = [
        "checkpoint=builtin/soft",
        "mbr=cider_d",
        "mbr_frequencies=frequencies.json",
        "output=frequencies.json",
    ]
    for command in (["caption", "images=picture.png"], ["eval", "data=scenes"]):
        assert run(*command, *arguments) != 0
        assert "output=frequencies.json is the same file as mbr_frequencies=" in capsys.readouterr().err
    assert Path("frequencies.json").read_text() == "[]\n"


OWN_SCORE = """
import numpy as np
from seqtool.metrics.scores import Metric

class Shortness(Metric):
    higher_is_better = False
    def statistics(self, hypotheses):
        return np.array([[len(text)] for text in hypotheses])
    def score(self, statistics):
        return statistics.mean()
"""


def test_a_score_of_ones_own(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower is better, so the shortest text of the beam is chosen."""
    Path("in.en").write_text("I have a big cat.\n")
    Path("own_shortness.py").write_text(OWN_SCORE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    arguments = ["translate", "checkpoint=builtin/words", "input=in.en", "n_best=5", "format=jsonl"]
    assert run(*arguments, "mbr=own_shortness.Shortness") == 0
    texts = [translation["text"] for translation in json.loads(capsys.readouterr().out)["translations"]]
    assert texts == sorted(texts, key=len)
    Path("in.es").write_text("Tengo un gato grande.\n")
    arguments = ["eval", "checkpoint=builtin/words", "sources=in.en", "references=in.es", "bootstrap=0"]
    assert run(*arguments, "mbr=own_shortness.Shortness") == 0
    assert " mbr=own_shortness.Shortness " in capsys.readouterr().out
