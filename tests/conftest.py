"""Fixtures for all tests."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # with more, test workers and the processes they start would compete for cores

import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shapes
import torch
import yaml
from jaxtyping import install_import_hook

# The shapes in the signatures of these modules are checked, because they are imported after the hook is installed.
# Commands that tests run as separate processes are not checked.
CHECKED_MODULES = ["seqtool.models", "seqtool.decoding", "seqtool.training.losses"]
install_import_hook(CHECKED_MODULES, "shapes.shapes")

import demo_models  # noqa: E402
import pretended_gpu  # noqa: E402
from small_models import MODELS, make_model  # noqa: E402

from seqtool.models.contract import EncoderDecoder  # noqa: E402
from seqtool.training.recording import MetricsLog  # noqa: E402

torch.set_num_threads(1)
# Under nohup hang-ups are ignored, and in the background of a script Ctrl-C, by the processes that tests start too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
ORIGINAL_DRAW = MetricsLog.draw
ROOT = Path(__file__).resolve().parent.parent
SLOW_FILES = (
    *("test_demo_page", "test_distributed", "test_training", "test_gpu", "test_bad_input", "test_translating"),
    *("test_captioning", "test_resuming", "test_demo"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, so that none of them starts when all quick ones have finished."""
    items.sort(key=lambda item: item.path.stem not in SLOW_FILES)


@pytest.fixture(autouse=True)
def check_shapes() -> None:
    shapes.begin()


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Simulate a GPU for tests marked `gpu`, if there is no real one."""
    if request.node.get_closest_marker("gpu") is None or torch.cuda.is_available():
        yield
    elif (reason := pretended_gpu.reason_unavailable()) is not None:
        pytest.skip(reason)
    else:
        with pretended_gpu.simulate_gpu():
            yield


@pytest.fixture(scope="session", autouse=True)
def parse_yaml_once() -> Iterator[None]:
    """Parse equal YAML texts once, since every command line reads about twenty files with settings."""
    parsed: dict[tuple[str, str], bytes] = {}  # by text and name of the loader, of which OmegaConf makes a new class

    def load_once(stream: Any, Loader: Any) -> Any:  # noqa: N803 the name is yaml's
        text = stream.read() if hasattr(stream, "read") else stream
        key = text, Loader.__qualname__
        if key not in parsed:
            if hasattr(stream, "seek"):
                stream.seek(0)  # messages name the file
            parsed[key] = pickle.dumps(load(stream, Loader))
        return pickle.loads(parsed[key])

    load = yaml.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def skip_fsync() -> Iterator[None]:
    """Do not wait for the disk, which takes milliseconds for each of many small files; tests of fsync replace it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def skip_curves() -> Iterator[None]:
    """Draw no learning curves, which take a second at every validation, except in tests that request `curves`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "draw", lambda log, *, last=False: None)
        yield


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw learning curves during training."""
    monkeypatch.setattr(MetricsLog, "draw", ORIGINAL_DRAW)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> EncoderDecoder[Any]:
    """Each kind of model in turn, small, with weights so large that its states differ."""
    return make_model(request.param)


@pytest.fixture(scope="session")
def shown_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with small runs of every kind: see `demo_models`."""
    directory = tmp_path_factory.mktemp("shown")
    demo_models.train_all(directory)
    return directory


@pytest.fixture
def shared() -> Path:
    """Data that are not part of the project; tests that need them are skipped where they are missing."""
    directory = Path(os.environ.get("SEQTOOL_SHARED", ROOT.parent / "shared"))
    if not directory.is_dir():
        pytest.skip(f"no shared data in {directory} (SEQTOOL_SHARED names another directory)")
    return directory
