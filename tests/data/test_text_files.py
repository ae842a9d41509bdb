"""Tests of written files: they are complete or absent, and keep the mode of the file that they replace."""

import json
import os
import stat
from pathlib import Path

import pytest

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    annotations = [{"image_id": 1, "id": 1, "caption": "a cat"}, {"image_id": 2, "id": 2, "caption": "a dog"}]
    content = {"images": [{"id": 1}, {"id": 2}], "annotations": annotations}
    (tmp_path / "references.json").write_text(json.dumps(content))
    return tmp_path


def write(name: str) -> int:
    """Run the quickest command that writes a file; all commands write files in the same way."""
    arguments = ["eval", "task=captioning", "references=references.json", f"save_document_frequencies={name}"]
    return cli.run(arguments, config_directory())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_replaced_file_keeps_its_mode(workspace: Path, mode: int) -> None:
    output = workspace / "output.json"
    output.write_text("before")
    output.chmod(mode)
    assert write("output.json") == 0
    assert output.read_text() != "before"
    assert stat.S_IMODE(output.stat().st_mode) == mode


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_the_mode_of_a_new_file(workspace: Path, mask: int, mode: int) -> None:
    previous_mask = os.umask(mask)
    try:
        assert write("output.json") == 0
    finally:
        os.umask(previous_mask)
    assert stat.S_IMODE((workspace / "output.json").stat().st_mode) == mode


def test_a_file_is_synced_before_it_replaces_another(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = workspace / "output.json"
    output.write_text("before")
    synced: list[bytes] = []

    def fsync(descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").resolve()
        assert file.parent == workspace and output.read_text() == "before"
        synced.append(file.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    assert write("output.json") == 0
    assert synced == [output.read_bytes()]
