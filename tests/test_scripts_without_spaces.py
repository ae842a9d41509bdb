"""Tests of text without spaces between words: scores, lengths, counts and vocabularies use characters."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from PIL import Image

from seqtool.cli import main as cli
from seqtool.evaluation import find_flags
from seqtool.metrics.words import f1_by_count
from seqtool.runtime.files import config_directory, write_lines

TEXTS = {  # BLEU's tokeniser, and two sentences
    "Chinese": ("zh", ["我喜欢红色的苹果，他住在北京。", "小狗在Google的草地上跑。"]),
    "Chinese, with a Japanese name": ("zh", ["我喜欢红色的苹果，也喜欢绿色的梨，还有黄色的香蕉和西瓜。", "の是日文。"]),
    "Japanese": ("char", ["私は赤いりんごが好きです。", "犬が公園を走っている。"]),
    "Japanese in kana": ("char", ["わたしはりんごがすきです。", "ﾃﾚﾋﾞをみます。"]),
    "Thai": ("char", ["ฉันชอบแอปเปิ้ลสีแดง", "เขาอาศัยอยู่ในกรุงเทพฯ และทำงานที่ธนาคาร"]),
    "Lao": ("char", ["ຂ້ອຍມັກໝາກແອັບເປີ້ນສີແດງ", "ລາວຢູ່ວຽງຈັນ"]),
    "Khmer": ("char", ["ខ្ញុំចូលចិត្តផ្លែប៉ោមក្រហម", "គាត់រស់នៅភ្នំពេញ ហើយធ្វើការនៅធនាគារ"]),
    "Burmese": ("char", ["သူသည် ရန်ကုန်မြို့တွင် နေထိုင်ပြီး ဘဏ်တွင် အလုပ်လုပ်သည်။", "ကျွန်တော်ပန်းသီးကြိုက်တယ်။"]),
    "Tibetan": ("char", ["ང་ཀུ་ཤུ་དམར་པོ་ལ་དགའ།", "ཁོ་ལྷ་ས་ལ་བསྡད་ཀྱི་ཡོད། ལས་ཀ་བྱེད།"]),
    "Chinese with Latin words": (
        "zh",
        ["我昨天用 Python 写了一个程序, 用来处理 CSV 文件和图片.", "他买了 2 本书, 还有 3 支笔."],
    ),
    "Chinese phrases": ("zh", ["你好, 世界. 谢谢, 再见.", "我知道了 谢谢你们 明天再见"]),
    "Japanese with Latin words": ("char", ["私は Python で CSV を読む.", "犬が Google の本社を走っている。"]),
    "Thai phrases": ("char", ["สวัสดีครับ, ขอบคุณ. ลาก่อน", "ใช้ Python 3 กับ CSV ได้"]),
    "Latin words in Chinese": ("char", ["使用Python的NumPy库来计算array的mean值", "用Google搜索附近的餐馆"]),
    "Korean without spaces": ("char", ["나는빨간사과를좋아한다.", "그는서울에산다."]),
    "letters": ("char", ["abcdefghijkl", "mnopqrst"]),
}
SPACED = {
    "English": ["I like red apples.", "He lives in Berlin."],
    "Finnish": ["Epäjärjestelmällisyydestäänkin hän pitää.", "Minä pidän omenista."],
    "Hindi": ["मुझे लाल सेब पसंद हैं।", "वह दिल्ली में रहता है।"],
    "Amharic": ["እኔ ቀይ ፖም እወዳለሁ።", "እሱ በአዲስ አበባ ይኖራል።"],
    "Korean": ["나는 빨간 사과를 좋아한다.", "그는 서울에 산다."],
    "Chinese cut into words": ["我 喜欢 红色 的 苹果 。", "他 住在 北京 。"],
    "Chinese cut into words, with Latin ones": ["我 昨天 用 Python 写 了 一个 程序 。", "他 买 了 2 本 书 。"],
    "Chinese cut into words and marks": ["你好 ， 世界 。", "谢谢 ， 再见 ！"],
    "Thai cut into words": ["ฉัน ชอบ แอปเปิ้ล สี แดง", "เขา อยู่ ใน กรุงเทพ"],
    "mixed": ["我喜欢苹果。", "He lives in Berlin and works in a bank there."],
}


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, lines: Sequence[str]) -> str:
    write_lines(Path(name), lines)
    return name


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run("eval", *arguments, "bootstrap=2", "format=json") == 0
    return json.loads(capsys.readouterr().out)


def bleu(
    capsys: pytest.CaptureFixture[str], hypotheses: Sequence[str], *references: Sequence[str], settings: Any = ()
) -> Any:
    files = [write(f"reference{number}", lines) for number, lines in enumerate(references)]
    arguments = (f"hypotheses={write('hypotheses', hypotheses)}", f"references={','.join(files)}", "ter=false")
    return evaluate(capsys, *arguments, *settings)["system"]["scores"][0]


@pytest.mark.parametrize("name", TEXTS)
def test_bleu_chooses_the_tokeniser_of_the_script(name: str, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    """BLEU equals sacreBLEU's score with that tokeniser, which is logged and stands in the signature."""
    tokenize, texts = TEXTS[name]
    worse = [texts[0], texts[1][1:]]
    score = bleu(capsys, worse, texts)
    assert f"tok:{tokenize}|" in score["signature"]
    assert score["value"] == pytest.approx(sacrebleu.corpus_bleu(worse, [texts], tokenize=tokenize).score)
    assert [f"tokenize={tokenize}: " in message for message in caplog.messages] == [True]
    assert ("ja-mecab" in caplog.text) == ("Japanese" in name and tokenize == "char")
    caplog.clear()
    assert "tok:13a|" in bleu(capsys, worse, texts, settings=["tokenize=13a"])["signature"] and not caplog.messages


def test_the_tokeniser_depends_on_all_references(capsys: pytest.CaptureFixture[str]) -> None:
    chinese = TEXTS["Chinese"][1]
    assert "tok:zh|" in bleu(capsys, SPACED["English"], chinese, chinese)["signature"]
    assert "tok:13a|" in bleu(capsys, chinese, chinese, SPACED["English"])["signature"]


@pytest.mark.parametrize("name", SPACED)
def test_spaced_text_keeps_the_default_tokeniser(name: str, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    """For Korean, a better tokeniser is recommended. Text that was cut into words is reported as segmented."""
    texts = SPACED[name]
    worse = [texts[0], texts[1][3:]]
    score = bleu(capsys, worse, texts)
    assert "tok:13a|" in score["signature"]
    assert score["value"] == sacrebleu.corpus_bleu(worse, [texts]).score
    recommendations = [message for message in caplog.messages if "segmented into words" not in message]
    assert ["ko-mecab" in message for message in recommendations] == [True] * (name == "Korean")
    counts = f"tokenize={'zh' if 'Chinese' in name else 'char'} counts characters"
    assert ("segmented into words by spaces; " in caplog.text and counts in caplog.text) == ("cut" in name)


UNSPACED = ("Chinese", "Japanese in kana", "Thai", "Burmese")
CAPTIONS = {name: TEXTS[name][1] for name in (*UNSPACED, "Latin words in Chinese", "Korean without spaces")}


@pytest.mark.parametrize("name", CAPTIONS)
def test_captions_are_scored_by_characters(name: str, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    """A caption that lacks its last two characters is nearly right. Document frequencies keep the tokenisation."""
    texts = CAPTIONS[name]
    Path("r.json").write_text(json.dumps({str(number): [text] for number, text in enumerate(texts)}))
    Path("h.json").write_text(json.dumps({str(number): text[:-2] for number, text in enumerate(texts)}))
    files = ("task=captioning", "hypotheses=h.json", "references=r.json")
    report = evaluate(capsys, *files)
    assert report["bleu4"] > 0.7 and report["cider_d"] > 5 and "|tok:char|" in report["signature"]
    assert "tokenize=char: " in caplog.text
    assert run("eval", "task=captioning", "references=r.json", "save_document_frequencies=df.json") == 0
    capsys.readouterr()
    assert evaluate(capsys, *files, "document_frequencies=df.json")["cider_d"] == report["cider_d"]
    assert "|tok:ptb-" in evaluate(capsys, *files, "tokenize=ptb")["signature"]


@pytest.mark.parametrize(
    "name", ["Hindi", "Korean", "Chinese cut into words", "mixed", "single words", "single words of Korean"]
)
def test_spaced_captions_are_scored_by_words(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = SPACED.get(name) or (["개", "고양이"] if "Korean" in name else ["dog", "cat"])
    Path("r.json").write_text(json.dumps(dict(enumerate(texts))))
    files = ("task=captioning", "hypotheses=r.json", "references=r.json")
    report = evaluate(capsys, *files)
    assert "|tok:ptb-" in report["signature"] and report == evaluate(capsys, *files, "tokenize=ptb")


MACHINE = ["device=cpu", "threads=1", "train.minutes=null", "data.processes=1", "validation.max_length=9"]
SMALL = ["model.embedding=8", "model.encoder_hidden=8", "model.decoder_hidden=8", "model.alignment=8", "model.maxout=8"]


def train(name: str, target: str, *settings: str) -> int:
    data = [f"data.{split}=source,{target}" for split in ("train", "valid")]
    kind = ["data=parallel", "data.vocabulary.kind=char", f"run={name}", "train.steps=1"]
    return run("train", *kind, *data, *MACHINE, *SMALL, *settings)


def recorded_tokenisers(name: str, step: int = 1) -> tuple[str, str]:
    """Return the tokeniser in the run's configuration file and the one in its checkpoint."""
    record = json.loads(next(Path(f"runs/{name}/checkpoints").glob(f"step-*{step}/checkpoint.json")).read_text())
    settings = Path(f"runs/{name}/config.yaml").read_text().split("validation:")[1]
    (line,) = [line for line in settings.splitlines() if "tokenize" in line]
    return line.split(": ")[1], record["config"]["validation"]["tokenize"]


@pytest.fixture
def parallel() -> None:
    write("source", ["red apples", "a dog"] * 4)
    for language in ("Chinese", "Thai"):
        write(language, TEXTS[language][1] * 4)
    write("English", SPACED["English"] * 4)


@pytest.mark.usefixtures("parallel")
def test_validation_chooses_and_keeps_a_tokeniser(caplog: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The references determine the tokeniser. A resumed run keeps it, and refuses another."""
    assert train("zh", "Chinese") == 0
    assert recorded_tokenisers("zh") == ("zh", "zh") and "Validation: tokenize=zh: " in caplog.text
    caplog.clear()
    assert run("train", "run=zh", "train.resume=true", "train.steps=2") == 0
    assert recorded_tokenisers("zh", 2) == ("zh", "zh") and "tokenize" not in caplog.text
    assert run("train", "run=zh", "train.resume=true", "train.steps=3", "validation.tokenize=char") == 2
    assert "validation.tokenize (zh, now char)" in capsys.readouterr().err


@pytest.mark.usefixtures("parallel")
@pytest.mark.parametrize(
    ("target", "settings", "tokeniser"),
    [("Thai", [], "char"), ("English", [], "13a"), ("Chinese", ["validation.tokenize=13a"], "13a")],
)
def test_validation_uses_the_tokeniser_of_its_references(target: str, settings: list[str], tokeniser: str) -> None:
    assert train("other", target, *settings) == 0
    assert recorded_tokenisers("other") == (tokeniser, tokeniser)


@pytest.mark.usefixtures("parallel")
def test_perfect_translations_score_100(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default tokeniser, BLEU would be 0."""
    from seqtool.data.text.vocabulary import SentencePieceVocabulary

    texts = iter(TEXTS["Chinese"][1] * 4)
    monkeypatch.setattr(SentencePieceVocabulary, "decode", lambda *_: next(texts))
    assert train("perfect", "Chinese") == 0
    assert "BLEU 100.00, the best so far" in capsys.readouterr().out


@pytest.mark.usefixtures("parallel")
@pytest.mark.parametrize(
    ("setting", "message"), [("13b", "Unknown tokeniser '13b'"), ("ptb", "Unknown tokeniser 'ptb'")]
)
def test_unknown_tokenisers_are_refused(setting: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("no", "Chinese", f"validation.tokenize={setting}") == 2
    assert message in capsys.readouterr().err


def make_photos(captions: Sequence[str]) -> list[str]:
    Path("photos").mkdir()
    for number in range(6):
        Image.new("RGB", (32, 32), (40 * number, 0, 0)).save(f"photos/{number}.png")
    lines = [json.dumps({"file": f"{i}.png", "caption": captions[i % len(captions)]}) for i in range(6)]
    file = f"data.train={write('captions.jsonl', lines)}"
    return ["data=photos", "data.directory=photos", file, "data.valid_share=0.4", "data.processes=1", "device=cpu"]


@pytest.mark.parametrize(("texts", "tokeniser"), [(CAPTIONS["Thai"], "char"), (SPACED["English"], "ptb")])
def test_validation_of_captions_chooses_a_tokeniser(texts: list[str], tokeniser: str, caplog: Any) -> None:
    """A vocabulary of words leads to a warning if captions have no spaces."""
    sizes = ["model=show_tell", "model.hidden=8", "model.embedding=8", "model.encoder.size=32", "run=photos"]
    settings = ["data.vocabulary.minimum_count=1", "data.test_share=0.1", "train.steps=1", "validation.max_length=5"]
    assert run("train", *make_photos(texts), *sizes, *settings, "threads=1") == 0
    assert recorded_tokenisers("photos") == (tokeniser, tokeniser)
    assert ("data.vocabulary.kind=char" in caplog.text) == (tokeniser == "char")
    assert ("Validation: tokenize=char" in caplog.text) == (tokeniser == "char")


@pytest.mark.usefixtures("parallel")
@pytest.mark.parametrize(
    ("data", "warning"),
    [
        (["data=parallel", "data.train=source,Thai", "data.valid=source,Thai"], "The target text has almost no spaces"),
        (["data=parallel", "data.train=Thai,source", "data.valid=Thai,source"], "The source text has almost no spaces"),
        (["data=parallel", "data.train=source,English", "data.valid=source,English"], ""),
        (
            ["data=text", "data.train=Chinese", "data.valid=Chinese", "model=language_model"],
            "The training text has almost",
        ),
    ],
)
def test_word_vocabularies_of_unspaced_text_give_a_warning(data: list[str], warning: str, caplog: Any) -> None:
    """The warning is logged when data are prepared and when they are read from the cache. Characters give none."""
    for _ in range(2):
        caplog.clear()
        assert run("prepare", *data, "data.vocabulary.kind=word", "data.processes=1") == 0
        assert caplog.text.count("data.vocabulary.kind=char") == bool(warning) and warning in caplog.text
    caplog.clear()
    assert run("prepare", *data, "data.vocabulary.kind=char", "data.processes=1") == 0
    assert "data.vocabulary.kind" not in caplog.text


@pytest.mark.parametrize(
    ("language", "unit"),
    [("Thai", "characters"), ("Latin words in Chinese", "characters"), ("Korean", "words"), ("letters", "words")],
)
def test_lengths_are_counted_in_the_right_unit(language: str, unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    sources = TEXTS[language][1] if language in TEXTS else SPACED[language]
    english = write("english", SPACED["English"])
    files = [f"hypotheses={english}", f"references={english}", f"sources={write('source', sources)}", "length_bins=[8]"]
    assert run("eval", *files, f"baseline={english}", "bootstrap=2", "ter=false") == 0
    table = capsys.readouterr().out
    assert f"| source {unit} " in table
    record = evaluate(capsys, *files)["system"]
    assert record.get("length_unit", "words") == unit
    assert [row["sentences"] for row in record["by_length"]] == ([0, 2] if unit == "characters" else [2, 0])


def test_training_data_are_counted_by_characters() -> None:
    """The report counts in the same unit."""
    lines = write("zh", ["我喜欢红色的苹果。", "我喜欢他。"])
    data = [f"data.{split}={write('en', ['a', 'b'])},{lines}" for split in ("train", "valid")]
    assert run("prepare", "data=parallel", *data, "data.vocabulary.kind=char", "data.processes=1") == 0
    table = next(Path("cache").glob("*/train.words.txt")).read_text("utf-8")
    counts = {word: int(count) for count, word in (line.split("\t") for line in table.splitlines())}
    assert counts["我"] == counts["喜"] == 2 and counts["苹"] == 1 and "。" not in counts
    scores = {score.label: score for score in f1_by_count(["我喜欢他"], [["我喜欢苹果。"]], counts, samples=2)}
    assert scores["2–4"].words == 3 and scores["2–4"].f1 is not None and scores["2–4"].f1.value == 100
    assert scores["1"].words == 2 and scores["1"].f1 is not None and scores["1"].f1.value == 0


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("我喜欢苹果我喜欢苹果", None, ["repeated"]),
        ("的的的的", None, ["repeated"]),
        ("ฉันชอบฉันชอบ", None, ["repeated"]),
        ("我们讨论讨论，高高兴兴", None, []),
        ("我喜欢苹果", "我喜欢苹果", ["copied"]),
        ("用Python读CSV用Python读CSV", None, ["repeated"]),
        ("hahaha", "hahaha", []),
        ("a b a b", "a b a b", ["repeated", "copied"]),
    ],
)
def test_flags_of_unspaced_text(text: str, source: str | None, expected: list[str]) -> None:
    assert find_flags(text, source=source) == expected


PAIRS = {
    "en-zh": ("Chinese", "zh"),
    "en-ja": ("Japanese", "char"),
    "en-km": ("Khmer", "13a"),
    "en-de": ("English", "13a"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_tokenisers_of_test_sets(pair: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    """The language pair determines the tokeniser, as in sacreBLEU, if the package that it needs is installed."""
    language, tokenize = PAIRS[pair]
    texts = TEXTS[language][1] if language in TEXTS else SPACED[language]
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.setattr(sacrebleu.utils, "SACREBLEU_DIR", ".")
    monkeypatch.setattr(sacrebleu, "get_langpairs_for_testset", lambda name: [pair])
    directory = Path("wmt20")
    directory.mkdir()
    for end in ("src", "ref"):
        write_lines(directory / f"wmt20.{pair}.{end}", SPACED["English"] if end == "src" else texts)
    arguments = [f"hypotheses={write('out', texts)}", "testset=wmt20", f"langpair={pair}", "ter=false"]
    system = evaluate(capsys, *arguments)["system"]
    assert f"tok:{tokenize}|" in system["scores"][0]["signature"]
    assert system["by_length"] and ("ja-mecab" in caplog.text) == (pair == "en-ja")
    assert bool(caplog.text) == (pair != "en-de")
