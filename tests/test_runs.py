"""Tests of run directories: each name belongs to a single run, even if several start at the same time."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seqtool.errors import InputError
from seqtool.training import runs


def test_a_named_run_is_created_once(tmp_path: Path) -> None:
    root = tmp_path / "a" / "runs"
    assert runs.create("first", suggestion="toy", root=root) == root / "first"
    (root / "first" / "config.yaml").write_text("kept")
    again, resume = "start it again with train.resume=auto", "resume it with train.resume=true"
    for advice, name in ((again, ".step-0000001-a1b2"), (again, "step-0000001"), (resume, "step-0000002")):
        with pytest.raises(InputError) as error:
            runs.create("first", suggestion="toy", root=root)
        assert str(error.value) == (
            f"Run 'first' already exists in {root / 'first'}: choose another name with run=…, or {advice}."
        )
        (root / "first" / "checkpoints" / name).mkdir(parents=True)
    assert (root / "first" / "config.yaml").read_text() == "kept"


def test_a_file_of_that_name_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("a file")
    with pytest.raises(InputError, match="Run 'first' already exists"):
        runs.create("first", suggestion="toy", root=tmp_path)
    assert (tmp_path / "first").read_text() == "a file"


def test_without_a_name_the_first_free_name_is_taken(tmp_path: Path) -> None:
    names = [runs.create(None, suggestion="toy-bahdanau", root=tmp_path).name for _ in range(3)]
    assert names == ["toy-bahdanau", "toy-bahdanau-2", "toy-bahdanau-3"]
    assert all((tmp_path / name).is_dir() for name in names)


def test_runs_started_at_once_get_different_names(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(lambda _: runs.create(None, suggestion="toy", root=tmp_path), range(24)))
    assert len(set(names)) == 24


@pytest.mark.parametrize("name", ["Köln (1)", "10", "a=b", "..a", "~", "null", " ", "a\\b", "${x}"])
def test_any_directory_name_names_a_run(name: str, tmp_path: Path) -> None:
    assert runs.create(name, suggestion="toy", root=tmp_path) == tmp_path / name
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/tmp/x", "a/b", "a/", "a\0b"])
def test_names_of_other_directories_are_refused(name: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with pytest.raises(InputError) as error:
        runs.create(name, suggestion="toy", root=root)
    assert str(error.value) == (f"Run name '{name}' is not a plain directory name: a run lives directly in {root}.")
    assert sorted(tmp_path.iterdir()) == [root]
    assert list(root.iterdir()) == []
