"""Tests of the examples of state-space models: they agree with the conditioning of one Gaussian, and obey laws."""
# ruff: noqa: N803, N806

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
Array = Any


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def linear() -> Iterator[ModuleType]:
    yield load("state_space")
    del sys.modules["state_space"]


@pytest.fixture(scope="module")
def rnn(linear: ModuleType) -> Iterator[ModuleType]:
    yield load("state_space_rnn")  # imports `state_space`, which `linear` has put among the modules
    del sys.modules["state_space_rnn"]


def covariance(size: int, generator: np.random.Generator) -> Array:
    factor = generator.standard_normal((size, size))
    return factor @ factor.T + 0.2 * np.eye(size)


def random_system(linear: ModuleType, seed: int) -> Any:
    """A system of three states, of which two mixtures are observed."""
    generator = np.random.default_rng(seed)
    A = np.linalg.qr(generator.standard_normal((3, 3)))[0] * 0.9
    C, mu = generator.standard_normal((2, 3)), generator.standard_normal(3)
    Q, R, Sigma = (covariance(size, generator) for size in (3, 2, 3))
    return linear.LinearSystem(A, C, Q, R, mu, Sigma)


def block_diagonal(*blocks: Array) -> Array:
    ends = np.cumsum([len(block) for block in blocks])
    whole = np.zeros((ends[-1], ends[-1]))
    for block, end in zip(blocks, ends, strict=True):
        whole[end - len(block) : end, end - len(block) : end] = block
    return whole


def residual_map(system: Any, T: int) -> tuple[Array, Array]:
    """The matrix that maps all states (T·N) to (x_1, w_2, …, w_T) and -C x_1, …, -C x_T; the covariance of all noise
    in this order, with that of x_1 first.
    """
    differences = np.eye(T * len(system.A)) - np.kron(np.eye(T, k=-1), system.A)
    noise = block_diagonal(system.Sigma, *[system.Q] * (T - 1), *[system.R] * T)
    return np.vstack([differences, -np.kron(np.eye(T), system.C)]), noise


def condition(system: Any, y: Array, seen: int) -> tuple[Array, Array, float]:
    """Condition the joint Gaussian of all states and outputs on the first `seen` outputs, without any recursion.

    Returns the mean (T·N) and covariance (T·N × T·N) of all states, and the log-density of those outputs.
    """
    T, N, D = len(y), len(system.A), len(system.C)
    matrix, noise = residual_map(system, T)
    from_noise = np.linalg.inv(matrix[: T * N])
    mean = from_noise[:, :N] @ system.mu
    joint = from_noise @ noise[: T * N, : T * N] @ from_noise.T
    H = np.kron(np.eye(T), system.C)[: seen * D]
    S = H @ joint @ H.T + np.kron(np.eye(seen), system.R)
    error = y[:seen].ravel() - H @ mean
    gain = joint @ H.T @ np.linalg.inv(S)
    log_density = -0.5 * (error @ np.linalg.inv(S) @ error + np.linalg.slogdet(2 * np.pi * S)[1])
    return mean + gain @ error, joint - gain @ H @ joint, log_density


def block(matrix: Array, row: int, column: int) -> Array:
    return matrix[3 * row : 3 * row + 3, 3 * column : 3 * column + 3]


def assert_equal(a: Array, b: Array, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_filter_and_smoother_condition_the_joint_gaussian(linear: ModuleType, seed: int) -> None:
    system = random_system(linear, seed)
    _, y = linear.sample(system, 7, np.random.default_rng(seed))
    filtered = linear.kalman_filter(system, y)
    smoothed = linear.smooth(system, filtered)
    for t in range(7):
        for seen, x, P in ((t, filtered.x_predicted, filtered.P_predicted), (t + 1, filtered.x, filtered.P)):
            mean, joint, _ = condition(system, y, seen)
            assert_equal(x[t], mean[3 * t : 3 * t + 3])
            assert_equal(P[t], block(joint, t, t))
    mean, joint, log_likelihood = condition(system, y, 7)
    assert_equal(smoothed.x, mean.reshape(7, 3))
    assert_equal(smoothed.P, [block(joint, t, t) for t in range(7)])
    assert_equal(smoothed.P_lag, [block(joint, t, t - 1) for t in range(1, 7)])
    assert_equal(filtered.log_likelihood, log_likelihood)


@pytest.mark.skipif(importlib.util.find_spec("pykalman") is None, reason="pykalman is not installed")
@pytest.mark.filterwarnings("ignore")  # those of the library
def test_filter_smoother_and_em_equal_pykalman(linear: ModuleType) -> None:
    pykalman = importlib.import_module("pykalman")
    names = {
        "A": "transition_matrices",
        "C": "observation_matrices",
        "Q": "transition_covariance",
        "R": "observation_covariance",
        "mu": "initial_state_mean",
        "Sigma": "initial_state_covariance",
    }
    system = random_system(linear, 0)
    _, y = linear.sample(system, 40, np.random.default_rng(0))
    filtered = linear.kalman_filter(system, y)
    smoothed = linear.smooth(system, filtered)
    library = pykalman.KalmanFilter(**{names[name]: value for name, value in system._asdict().items()})
    for ours, theirs in ((filtered, library.filter(y)), (smoothed, library.smooth(y))):
        assert_equal(ours.x, theirs[0])
        assert_equal(ours.P, theirs[1])
    assert_equal(filtered.log_likelihood, library.loglikelihood(y))
    learnt, _ = linear.em_step(system, y)
    library = library.em(y, n_iter=1, em_vars=list(names.values()))
    for name, value in learnt._asdict().items():
        assert_equal(value, getattr(library, names[name]))


@pytest.mark.parametrize("seed", range(5))
def test_em_raises_the_likelihood_at_every_step(linear: ModuleType, seed: int) -> None:
    generator = np.random.default_rng(seed)
    _, y = linear.sample(random_system(linear, seed), 60, generator)
    learnt, log_likelihoods = linear.learn(linear.first_guess(y, 3, generator), y, 25)
    assert len(log_likelihoods) == 26
    assert np.all(np.diff(log_likelihoods) > 0)
    assert log_likelihoods[-1] == linear.kalman_filter(learnt, y).log_likelihood


def expected_log_density(system: Any, y: Array, mean: Array, joint: Array) -> float:
    """The mean of log p(x, y) over all states x from N(mean, joint): what the M step of EM maximises."""
    matrix, noise = residual_map(system, len(y))
    residual = matrix @ mean + np.concatenate([-system.mu, np.zeros(len(mean) - len(system.mu)), y.ravel()])
    spread = np.outer(residual, residual) + matrix @ joint @ matrix.T
    return float(-0.5 * (np.trace(np.linalg.solve(noise, spread)) + np.linalg.slogdet(2 * np.pi * noise)[1]))


def test_an_m_step_maximises_the_expected_log_density(linear: ModuleType) -> None:
    system = random_system(linear, 0)
    _, y = linear.sample(system, 8, np.random.default_rng(0))
    mean, joint, _ = condition(system, y, 8)
    learnt, _ = linear.em_step(system, y)
    best = expected_log_density(learnt, y, mean, joint)
    assert best > expected_log_density(system, y, mean, joint)
    generator = np.random.default_rng(1)
    for name, value in learnt._asdict().items():
        for _ in range(5):
            change = 1e-3 * generator.standard_normal(value.shape)
            if name in ("Q", "R", "Sigma"):
                change = change + change.T
            for sign in (-1, 1):
                assert expected_log_density(learnt._replace(**{name: value + sign * change}), y, mean, joint) < best


def linear_network(rnn: ModuleType) -> Any:
    return rnn.switches()._replace(
        W=np.array([[0.9, -0.3], [0.3, 0.9]]), b=np.array([0.3, -0.2]), c=np.array([0.5]), activation=rnn.IDENTITY
    )


def without_inputs(linear: ModuleType, network: Any, x: Array) -> tuple[Any, Array]:
    """The linear system of the part of the hidden state that is due to noise, and the part that is not (T × H)."""
    steady = np.zeros((len(x) + 1, 2))
    for t in range(len(x)):
        steady[t + 1] = network.W @ steady[t] + network.U @ x[t] + network.b
    system = linear.LinearSystem(network.W, network.V, network.Q, network.R, mu=np.zeros(2), Sigma=network.Q)
    return system, steady[1:]


def test_on_a_linear_network_the_extended_filter_is_the_kalman_filter(linear: ModuleType, rnn: ModuleType) -> None:
    generator = np.random.default_rng(0)
    network, x = linear_network(rnn), generator.standard_normal((50, 1))
    _, y = rnn.sample(network, x, generator)
    system, steady = without_inputs(linear, network, x)
    filtered = linear.kalman_filter(system, y - steady @ network.V.T - network.c)
    extended = rnn.extended_kalman_filter(network, x, y)
    assert_equal(extended.h, filtered.x + steady)
    assert_equal(extended.P, filtered.P)
    assert_equal(extended.log_likelihood, filtered.log_likelihood)


def test_the_particle_filter_agrees_with_the_kalman_filter(rnn: ModuleType) -> None:
    """The standard error is that of 20 independent filters: one from the weights would leave out the resampling."""
    generator = np.random.default_rng(0)
    network, x = linear_network(rnn), generator.standard_normal((15, 1))
    _, y = rnn.sample(network, x, generator)
    exact = rnn.extended_kalman_filter(network, x, y)
    filters = [rnn.particle_filter(network, x, y, 10_000, generator) for _ in range(20)]
    for of_particles, of_kalman in (
        ([result.h for result in filters], exact.h),
        ([result.P for result in filters], exact.P),
    ):
        error = np.mean(of_particles, axis=0) - of_kalman
        assert np.all(np.abs(error) < 4 * np.std(of_particles, axis=0, ddof=1) / np.sqrt(20))
    log_likelihoods = [result.log_likelihood for result in filters]
    assert abs(np.mean(log_likelihoods) - exact.log_likelihood) < 4 * np.std(log_likelihoods, ddof=1) / np.sqrt(20)
    effective = np.array([result.effective for result in filters])
    assert effective.max() <= 10_000
    assert effective.min() > 2_500  # if weights outlived the resampling, 400 would be left


def test_systematic_resampling_rounds_the_expected_numbers(rnn: ModuleType) -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        weights = generator.dirichlet(np.full(30, 0.3))
        copies = np.bincount(rnn.systematic_resampling(weights, generator), minlength=30)
        assert np.all(np.abs(copies - 30 * weights) < 1 + 1e-9)


def test_an_exact_filter_is_consistent_and_one_with_other_covariances_is_not(rnn: ModuleType) -> None:
    generator, network, band = np.random.default_rng(0), linear_network(rnn), rnn.error_band(200, 2)
    runs = []
    for _ in range(200):
        x = generator.standard_normal((20, 1))
        h, y = rnn.sample(network, x, generator)
        runs.append((h, rnn.extended_kalman_filter(network, x, y)))
    for factor, expected in ((1, "consistent"), (0.8, "overconfident"), (1.25, "underconfident")):
        errors = [rnn.normalised_error(h, estimates._replace(P=factor * estimates.P)) for h, estimates in runs]
        assert rnn.verdict(np.mean(errors), band) == expected
        verdicts = [rnn.verdict(error, band) for error in np.mean(errors, axis=0)]
        assert verdicts.count(expected) >= 16  # of 20: one step in 20 is outside the band of an exact filter


def test_chi_square_quantiles(rnn: ModuleType) -> None:
    """The quantiles of 30 and 100 degrees of freedom in printed tables."""
    for degrees, low, high in ((30, 16.791, 46.979), (100, 74.222, 129.561)):
        assert rnn.chi_square_quantile(0.025, degrees) == pytest.approx(low, rel=1e-3)
        assert rnn.chi_square_quantile(0.975, degrees) == pytest.approx(high, rel=1e-3)


def run_main(module: ModuleType, figure: Path, *options: str) -> None:
    module.main(["--output", str(figure), *options])
    with Image.open(figure) as image:
        assert image.width / image.height == pytest.approx(16 / 9, rel=0.01)
        assert len(set(image.convert("L").tobytes())) > 50


def test_the_first_example_runs(linear: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_main(linear, tmp_path / "figure.png", "--steps", "30", "--iterations", "5")
    assert "after 5 iterations" in capsys.readouterr().out


def test_the_second_example_finds_the_extended_kalman_filter_overconfident(
    rnn: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(rnn, tmp_path / "figure.png", "--steps", "25")
    printed = capsys.readouterr().out.splitlines()
    verdicts = {line[:24].strip(): line.split()[-1] for line in printed[2:4]}
    assert verdicts == {"extended Kalman filter": "overconfident", "particle filter": "consistent"}
