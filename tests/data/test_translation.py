"""Tests of parallel text: it is read as it was written, and errors name the file and line."""

import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import serve_files

from seqtool.data.corpora import multi30k
from seqtool.data.corpora.multi30k import Multi30k
from seqtool.data.corpora.parallel import ParallelFiles, Toy
from seqtool.errors import InputError
from seqtool.runtime.files import read_lines, read_text, read_tsv, read_two_files, warn_of_table
from seqtool.settings.classes import build


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def make_corpus(train: str | list[str], test: str | list[str] | None = None) -> ParallelFiles:
    return ParallelFiles(train=train, valid=None, test=test, source_language="en", target_language="de")


def test_a_byte_that_is_not_utf8_is_counted_from_the_first_line_of_a_file_with_carriage_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "old.txt", b"ab\rcd\rx\xff\r")
    for read in (lambda: list(read_lines(path)), lambda: read_text(path)):
        with pytest.raises(InputError, match=r"line 1 is not valid UTF-8 \(byte 8 of the line\)"):
            read()


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_lines_end_at_line_feeds_only(name: str, tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh\r\n\n i \nlast"
    path = write(tmp_path / name, text)
    assert list(read_lines(path)) == ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh", "", " i ", "last"]


def test_a_final_line_feed_and_a_byte_order_mark_are_not_text(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "a", b"\xef\xbb\xbfone\ntwo"))) == ["one", "two"]
    assert list(read_lines(write(tmp_path / "b", "one\ntwo\n"))) == ["one", "two"]
    assert list(read_lines(write(tmp_path / "c", "\n"))) == [""]


def test_two_files_and_a_tsv_give_the_same_pairs(tmp_path: Path) -> None:
    write(tmp_path / "a.en.gz", "one\ntwo\n")
    write(tmp_path / "a.de", "eins\nzwei\n")
    tsv = write(tmp_path / "a.tsv", "one\teins\ntwo\tzwei\n")
    expected = [("one", "eins"), ("two", "zwei")]
    files = [str(tmp_path / "a.en.gz"), str(tmp_path / "a.de")]
    for corpus in (make_corpus(files), make_corpus(str(tsv)), make_corpus([str(tsv)])):
        assert list(corpus.pairs("train")) == expected
        assert corpus.splits() == ("train",)
        assert corpus.alignments("train") is None
    assert make_corpus(files, test=str(tsv)).splits() == ("train", "test")


@pytest.mark.parametrize(
    ("english", "german", "message"),
    [
        ("x\n" * 3, "x\n" * 2, "a.en has 3 lines but a.de has 2: the files must be parallel."),
        ("x\n", "x\n" * 1500, "a.de has 1,500 lines but a.en has 1: the files must be parallel."),
        ("x\n", "", "a.de is empty."),
        (
            "x\ny\n",
            b"x\ny\xff\n",
            "a.de line 2 is not valid UTF-8 (byte 2 of the line): convert the file to UTF-8.",
        ),
        (
            "x\nx\n",
            b"x\n\xe4",
            "a.de line 2 is not valid UTF-8 (byte 1 of the line): convert the file to UTF-8.",
        ),
    ],
)
def test_files_must_be_parallel(english: str, german: str | bytes, message: str, tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", english), write(tmp_path / "a.de", german)
    with pytest.raises(InputError) as error:
        list(read_two_files(source, target))
    assert str(error.value) == f"{tmp_path}/{message}".replace("but ", f"but {tmp_path}/")


def test_files_in_two_directories_are_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    source, target = write(tmp_path / "a", "x\n"), write(tmp_path / "other" / "a", "x\ny\n")
    with pytest.raises(InputError) as error:
        list(read_two_files(source, target))
    assert str(error.value) == f"{target} has 2 lines but {source} has 1: the files must be parallel."


def test_names_without_a_text_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        ("missing.txt", "does not exist."),
        ("", "is a directory, not a text file."),
        ("pipe", "is not a regular file: write the text into a file first."),
    ):
        with pytest.raises(InputError) as error:
            list(read_lines(tmp_path / name))
        assert str(error.value) == f"{tmp_path / name} {problem}"


def test_damaged_gzip_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", "".join(f"line {i}\n" for i in range(5000)))
    intact = path.read_bytes()
    path.write_bytes(intact[:-20])
    with pytest.raises(InputError) as error:
        list(read_lines(path))
    assert str(error.value).startswith(f"{path} is cut short after line ")
    assert str(error.value).endswith(": copy or download it again.")
    path.write_bytes(intact[:60] + bytes(40) + intact[100:])
    with pytest.raises(InputError, match=r"a\.gz is not an intact gzip file \(after line \d+\): copy or download"):
        list(read_lines(path))
    path.write_bytes(b"plain text\n")
    with pytest.raises(InputError, match=r"a\.gz is not an intact gzip file \(after line 0\)"):
        list(read_lines(path))


@pytest.mark.parametrize(("line", "tabs"), [("no tab", 0), ("a\tb\tc", 2)])
def test_tsv_lines_have_one_tab(line: str, tabs: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", f"a\tb\n{line}\n")
    with pytest.raises(InputError) as error:
        list(read_tsv(path))
    expected = f"{path} line 2 has {tabs} tabs: each line must be the source, one tab, the target."
    expected += " Or give two files, source,target." if tabs == 0 else ""
    assert str(error.value) == expected


def test_blank_lines_of_a_table_are_empty_pairs(tmp_path: Path) -> None:
    """As in two files, so that preparation counts and drops them. At the end they are no pairs."""
    path = write(tmp_path / "a.tsv", "a\tb\n\n \nc\td\n \n\n")
    assert list(read_tsv(path)) == [("a", "b"), ("", ""), ("", ""), ("c", "d")]


@pytest.mark.parametrize(
    ("lines", "is_table"),
    [(["a\tb", "", "c\td", " "], True), (["a\tb", "c"], False), (["\tif x:", "\t\treturn"], False), ([""], False)],
)
def test_a_table_in_place_of_a_text_is_named(
    lines: list[str], is_table: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_table("a.tsv", lines)
    assert ("The lines of a.tsv have tabs, so it seems to be a table" in caplog.text) == is_table


@pytest.mark.parametrize(
    ("files", "given", "languages"),
    [
        (["a/train.de-en.de.gz", "train.en"], ("source", "target"), ("de", "en")),
        (["train.pt-BR", "train.zh_TW"], ("source", "target"), ("pt-BR", "zh_TW")),
        (["train.de", "train.en"], ("Hessian", "target"), ("Hessian", "en")),
        (["train.src", "train.tgt"], ("source", "target"), ("source", "target")),
        (["complex.en", "simple.en"], ("source", "target"), ("source", "target")),
        (["train.de", "train.txt"], ("source", "target"), ("de", "target")),
        (["train.de"], ("source", "target"), ("source", "target")),
        ("train.de.tsv", ("source", "target"), ("source", "target")),
    ],
)
def test_languages_without_a_name_are_read_off_the_files(
    files: str | list[str], given: tuple[str, str], languages: tuple[str, str]
) -> None:
    names = {"source_language": given[0], "target_language": given[1]}
    corpus = ParallelFiles(train=files, valid=None, test=None, **names)
    assert corpus.languages == languages
    assert (corpus.source_language, corpus.target_language) == given, "on which the names of caches depend"


def test_a_wrong_number_of_files_is_refused() -> None:
    with pytest.raises(InputError) as error:
        make_corpus(["a", "b", "c"])
    assert str(error.value) == "data.train names 3 files: it takes a source and a target file, or one TSV file."
    with pytest.raises(InputError, match=r"^data\.train names no files: it takes"):
        make_corpus([])


def test_text_is_read_lazily(tmp_path: Path) -> None:
    write(tmp_path / "a.en", b"good\n\xff\n")
    write(tmp_path / "a.de", "gut\nschlecht\n")
    pairs = make_corpus([str(tmp_path / "a.en"), str(tmp_path / "a.de")]).pairs("train")
    assert next(pairs) == ("good", "gut")


def test_the_toy_corpus_has_the_chosen_sizes() -> None:
    sizes = {"train": 50, "valid": "5", "test": 7, "longest": 25}
    settings = {"_target_": "seqtool.data.corpora.parallel.Toy", "seed": 1, **sizes}
    corpus: Toy = build(settings, trusted=False)
    assert [len(list(corpus.pairs(split))) for split in corpus.splits()] == [50, 5, 7]
    alignments = corpus.alignments("test")
    assert alignments is not None and len(alignments) == 7 and "0-" in alignments[0]
    assert (corpus.source_language, corpus.target_language) == ("en", "es")
    with pytest.raises(InputError, match=r"^data\.test is 0: a split needs at least 1 pair\.$"):
        Toy(seed=1, train=5, valid=5, test=0, longest=25)


def test_fingerprints_depend_on_the_text_but_not_its_path(tmp_path: Path) -> None:
    def fingerprint(name: str, content: str) -> object:
        path = write(tmp_path / name, content)
        return make_corpus(str(path)).fingerprint(lambda path: hashlib.sha256(path.read_bytes()).hexdigest())

    assert fingerprint("a.tsv", "a\tb\n") == fingerprint("b.tsv", "a\tb\n") != fingerprint("c.tsv", "a\tc\n")


def make_multi30k(directory: Path, *, test_set: str = "test_2016_flickr", download: bool = False) -> Multi30k:
    return Multi30k(
        directory=str(directory),
        source_language="en",
        target_language="de",
        test_set=test_set,
        download=download,
    )


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server with small stand-ins for the published files, whose sizes and checksums become the expected ones."""
    directory = tmp_path / "published"
    directory.mkdir()
    expected_files = dict(multi30k.PUBLISHED)
    for stem in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            path = write(directory / f"{stem}.{language}.gz", f"{stem} in {language}\n")
            content = path.read_bytes()
            expected_files[path.name] = len(content), hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(multi30k, "PUBLISHED", expected_files)
    with serve_files(directory) as server:
        monkeypatch.setattr(multi30k, "URL", server.address)
        yield directory


def test_missing_files_are_downloaded_on_request(published: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data" / "multi30k"
    with pytest.raises(InputError) as error:
        make_multi30k(directory).fetch()
    assert str(error.value) == (
        f"{directory}/train.en.gz does not exist: set data.directory to the directory of Multi30k's files, "
        "or data.download=true to download them into it."
    )
    assert not directory.exists()
    corpus = make_multi30k(directory, download=True)
    corpus.fetch()
    assert list(corpus.pairs("valid")) == [("val in en", "val in de")]
    assert sorted(path.name for path in directory.iterdir()) == sorted(path.name for path in published.iterdir())
    make_multi30k(directory).fetch()


def test_files_that_differ_from_the_published_ones_are_refused(published: Path, tmp_path: Path) -> None:
    path = published / "val.de.gz"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    with pytest.raises(InputError) as error:
        make_multi30k(published).fetch()
    assert str(error.value) == (
        f"{path} is not the file of Multi30k: it has {len(intact) - 1} bytes instead of {len(intact)}. "
        "Remove it and set data.download=true."
    )
    path.write_bytes(intact[:-1] + b"x")
    with pytest.raises(
        InputError, match=r"val\.de\.gz is not the file of Multi30k: its SHA-256 is [0-9a-f]{64} instead of"
    ):
        make_multi30k(published).fetch()
    directory = tmp_path / "downloads"
    with pytest.raises(InputError, match=r"val\.de\.gz is not the expected file: its SHA-256 is"):
        make_multi30k(directory, download=True).fetch()
    assert not (directory / "val.de.gz").exists()


def test_a_failed_download_is_reported(published: Path, tmp_path: Path) -> None:
    (published / "train.en.gz").unlink()
    directory = tmp_path / "downloads"
    with pytest.raises(InputError) as error:
        make_multi30k(directory, download=True).fetch()
    assert str(error.value) == (
        f"{multi30k.URL}train.en.gz answers with status 404 (Not Found): put train.en.gz into {directory} by hand."
    )


def test_languages_and_test_sets_outside_multi30k_are_refused() -> None:
    with pytest.raises(InputError, match=r"^Unknown data\.target_language 'es'; choose from en, de, fr, cs\.$"):
        Multi30k(
            directory="x",
            source_language="en",
            target_language="es",
            test_set="test_2016_flickr",
            download=False,
        )
    with pytest.raises(InputError, match=r"^data\.source_language and data\.target_language are both 'de'\.$"):
        Multi30k(
            directory="x",
            source_language="de",
            target_language="de",
            test_set="test_2016_flickr",
            download=False,
        )
    with pytest.raises(InputError) as error:
        make_multi30k(Path("x"), test_set="test2016")
    assert str(error.value) == (
        "Unknown data.test_set 'test2016'; choose from test_2016_flickr, test_2017_flickr, test_2017_mscoco, "
        "test_2018_flickr."
    )


def test_the_published_multi30k_is_read(shared: Path) -> None:
    corpus = make_multi30k(shared / "data" / "multi30k")
    corpus.fetch()
    counts = {split: sum(1 for _ in corpus.pairs(split)) for split in corpus.splits()}
    assert counts == {"train": 29_000, "valid": 1_014, "test": 1_000}
