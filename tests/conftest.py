"""Fixtures for all tests."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores, and what they start, would wait for each other

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shapes
import torch
from jaxtyping import install_import_hook

# The shapes in the signatures of these are checked, since they are imported after this; commands that tests run as
# separate processes are not checked.
CHECKED = ["seqtool.models", "seqtool.decoding", "seqtool.training.losses"]
install_import_hook(CHECKED, "shapes.shapes")

import demo_models  # noqa: E402
import pretended_gpu  # noqa: E402
from small_models import MODELS, make_model  # noqa: E402

from seqtool.models.contract import EncoderDecoder  # noqa: E402
from seqtool.training.recording import MetricsLog  # noqa: E402

torch.set_num_threads(1)
DRAW = MetricsLog.draw
ROOT = Path(__file__).resolve().parent.parent


SLOW = ("test_gpu", "test_distributed", "test_translating", "test_captioning", "test_training", "test_resuming")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, so that none starts when the others have finished."""
    items.sort(key=lambda item: item.path.stem not in SLOW)


@pytest.fixture(autouse=True)
def shapes_are_checked() -> None:
    shapes.begin()


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """A pretended GPU for tests marked `gpu`, if there is no real one."""
    if request.node.get_closest_marker("gpu") is None or torch.cuda.is_available():
        yield
    elif (reason := pretended_gpu.unknown()) is not None:
        pytest.skip(reason)
    else:
        with pretended_gpu.pretended():
            yield


@pytest.fixture(scope="session", autouse=True)
def curves_are_not_drawn() -> Iterator[None]:
    """Learning curves take a second at every validation: only tests that ask for `curves` have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "draw", lambda log: None)
        yield


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have training draw learning curves."""
    monkeypatch.setattr(MetricsLog, "draw", DRAW)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> EncoderDecoder[Any]:
    """Every model, small, with weights large enough that its states differ."""
    return make_model(request.param)


@pytest.fixture(scope="session")
def shown_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with small runs of every kind: see `demo_models`."""
    place = tmp_path_factory.mktemp("shown")
    demo_models.train_all(place)
    return place


@pytest.fixture
def shared() -> Path:
    """Data that are not part of the project; tests that need them are skipped where they are missing."""
    place = Path(os.environ.get("SEQTOOL_SHARED", ROOT.parent / "shared"))
    if not place.is_dir():
        pytest.skip(f"no shared data in {place} (SEQTOOL_SHARED names another place)")
    return place
