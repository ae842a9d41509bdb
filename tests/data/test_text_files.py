"""Files that are written: whole or not there at all, with the mode of what was there before."""

import json
import os
import stat
from pathlib import Path

import pytest

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    annotations = [{"image_id": 1, "id": 1, "caption": "a cat"}, {"image_id": 2, "id": 2, "caption": "a dog"}]
    content = {"images": [{"id": 1}, {"id": 2}], "annotations": annotations}
    (tmp_path / "references.json").write_text(json.dumps(content))
    return tmp_path


def write(name: str) -> int:
    """The quickest command that writes a file; they all write as this one does."""
    arguments = ["eval", "task=captioning", "references=references.json", f"save_document_frequencies={name}"]
    return cli.run(arguments, config_directory())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(place: Path, mode: int) -> None:
    output = place / "output.json"
    output.write_text("before")
    output.chmod(mode)
    assert write("output.json") == 0
    assert output.read_text() != "before"
    assert stat.S_IMODE(output.stat().st_mode) == mode


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_user_gives_new_files(place: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        assert write("output.json") == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((place / "output.json").stat().st_mode) == mode


def test_a_file_is_on_the_disk_before_it_takes_its_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = place / "output.json"
    output.write_text("before")
    synced: list[bytes] = []

    def fsync(descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").resolve()
        assert file.parent == place and output.read_text() == "before"
        synced.append(file.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    assert write("output.json") == 0
    assert synced == [output.read_bytes()]
