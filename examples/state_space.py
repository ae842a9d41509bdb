"""A linear dynamical system: sampling, the Kalman filter, the Rauch–Tung–Striebel smoother, and learning by EM.

    x_1 ~ N(mu, Sigma)
    x_t = A x_{t-1} + w_t,   w_t ~ N(0, Q)      t = 2, …, T
    y_t = C x_t + v_t,       v_t ~ N(0, R)      t = 1, …, T

x_t is the hidden state, y_t what is observed of it. The letters are those of Ghahramani and Hinton (1996), except for
mu and Sigma, the mean and the covariance of the first state. P is the covariance of an estimate of x. In shapes, T is
the number of time steps, N of states and D of observed variables.

Sources: Kalman (1960), "A new approach to linear filtering and prediction problems"; Rauch, Tung and Striebel (1965),
"Maximum likelihood estimates of linear dynamic systems"; Shumway and Stoffer (1982), "An approach to time series
smoothing and forecasting using the EM algorithm", whose appendix has the equations (A3) to (A10); Ghahramani and Hinton
(1996), "Parameter estimation for linear dynamical systems", who also learn C; Bishop (2006), "Pattern recognition and
machine learning", section 13.3, which has the equations (13.106) to (13.116).

    python examples/state_space.py --output state_space.png
"""
# ruff: noqa: N803, N806

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
BAND = 1.96  # standard deviations to each side, which hold 95 % of a Gaussian
BLACK, GREY, BLUE, ORANGE, GREEN = "#222222", "#8a8f96", "#0072b2", "#c24e00", "#00794f"


class LinearSystem(NamedTuple):
    """The parameters of a linear dynamical system."""

    A: Array  # N × N
    C: Array  # D × N
    Q: Array  # N × N
    R: Array  # D × D
    mu: Array  # N
    Sigma: Array  # N × N


class Filtered(NamedTuple):
    """Means x and covariances P of each state, given the observations up to its own time step."""

    x: Array  # T × N
    P: Array  # T × N × N
    x_predicted: Array  # T × N, given the observations before its time step only
    P_predicted: Array  # T × N × N
    log_likelihood: float  # of all observations, in nats


class Smoothed(NamedTuple):
    """Means x and covariances P of each state, given all observations."""

    x: Array  # T × N
    P: Array  # T × N × N
    P_lag: Array  # (T - 1) × N × N: the covariance of x_t and x_{t-1}, for t = 2, …, T


def sample(system: LinearSystem, steps: int, generator: Generator) -> tuple[Array, Array]:
    """Draw states (T × N) and observations (T × D)."""
    A, C, Q, R, mu, Sigma = system
    x = np.empty((steps, len(mu)))
    x[0] = generator.multivariate_normal(mu, Sigma, method="cholesky")
    w = generator.multivariate_normal(np.zeros(len(Q)), Q, steps, method="cholesky")
    v = generator.multivariate_normal(np.zeros(len(R)), R, steps, method="cholesky")
    for t in range(1, steps):
        x[t] = A @ x[t - 1] + w[t]
    return x, x @ C.T + v


def correct(x: Array, P: Array, innovation: Array, C: Array, R: Array) -> tuple[Array, Array, float]:
    """Correct the prediction of a state, N(x, P), by an observation.

    innovation: the observation minus its prediction (D)

    Returns the corrected x (N) and P (N × N), and the log-density of the innovation in nats.
    """
    S = C @ P @ C.T + R  # the covariance of the innovation
    K = np.linalg.solve(S, C @ P).T  # (A5) the gain P Cᵀ S⁻¹, as P and S are symmetric
    x = x + K @ innovation  # (A6)
    P = P - K @ S @ K.T  # (A7) P - K C P, written so that it stays symmetric
    distance = innovation @ np.linalg.solve(S, innovation)
    log_density = -0.5 * (distance + np.linalg.slogdet(2 * np.pi * S).logabsdet)
    return x, P, float(log_density)


def kalman_filter(system: LinearSystem, y: Array) -> Filtered:
    """Estimate each state from the observations y (T × D) so far: Kalman (1960)."""
    A, C, Q, R, mu, Sigma = system
    T, N = len(y), len(mu)
    x, x_predicted = np.empty((T, N)), np.empty((T, N))
    P, P_predicted = np.empty((T, N, N)), np.empty((T, N, N))
    log_likelihood = 0.0
    for t in range(T):
        x_predicted[t] = A @ x[t - 1] if t > 0 else mu  # (A3)
        P_predicted[t] = A @ P[t - 1] @ A.T + Q if t > 0 else Sigma  # (A4)
        innovation = y[t] - C @ x_predicted[t]
        x[t], P[t], log_density = correct(x_predicted[t], P_predicted[t], innovation, C, R)
        log_likelihood += log_density
    return Filtered(x, P, x_predicted, P_predicted, log_likelihood)


def smooth(system: LinearSystem, filtered: Filtered) -> Smoothed:
    """Estimate each state from all observations, backwards from the filter's last estimate: Rauch et al. (1965)."""
    x, P = filtered.x.copy(), filtered.P.copy()
    P_lag = np.empty_like(P[1:])
    for t in range(len(x) - 2, -1, -1):
        P_predicted = filtered.P_predicted[t + 1]
        J = np.linalg.solve(P_predicted, system.A @ P[t]).T  # (A8) P Aᵀ P_predicted⁻¹
        x[t] += J @ (x[t + 1] - filtered.x_predicted[t + 1])  # (A9)
        P[t] += J @ (P[t + 1] - P_predicted) @ J.T  # (A10)
        P_lag[t] = P[t + 1] @ J.T  # (13.106), whose first printings lack the transposes
    return Smoothed(x, P, P_lag)


def em_step(system: LinearSystem, y: Array) -> tuple[LinearSystem, float]:
    """Return a system under which the observations y (T × D) are at least as likely, and the log-likelihood of the old
    one in nats.

    From a single sequence, Sigma shrinks towards 0, because the best N(mu, Sigma) is narrow and lies where x_1 was.
    """
    filtered = kalman_filter(system, y)
    x, P, P_lag = smooth(system, filtered)
    T = len(y)
    xx = P + x[:, :, None] * x[:, None, :]  # (13.107) the mean of x_t x_tᵀ
    xx_lag = P_lag + x[1:, :, None] * x[:-1, None, :]  # (13.106) the mean of x_t x_{t-1}ᵀ
    earlier, later, lag = xx[:-1].sum(0), xx[1:].sum(0), xx_lag.sum(0)
    A = np.linalg.solve(earlier, lag.T).T  # (13.113)
    Q = (later - A @ lag.T) / (T - 1)  # (13.114), simplified by the new A
    C = np.linalg.solve(xx.sum(0), x.T @ y).T  # (13.115)
    R = (y.T @ y - C @ x.T @ y) / T  # (13.116), simplified by the new C
    Q, R = (Q + Q.T) / 2, (R + R.T) / 2  # symmetric but for rounding
    return LinearSystem(A, C, Q, R, mu=x[0], Sigma=P[0]), filtered.log_likelihood  # (13.110), (13.111)


def learn(system: LinearSystem, y: Array, iterations: int) -> tuple[LinearSystem, list[float]]:
    """Improve a system by EM: Shumway and Stoffer (1982). The result depends on where it starts.

    Returns the learnt system and `iterations` + 1 log-likelihoods in nats: before each step and after the last. States
    have no names: any invertible map of the states, applied to the whole system, explains y as well.
    """
    log_likelihoods = []
    for _ in range(iterations):
        system, log_likelihood = em_step(system, y)
        log_likelihoods.append(log_likelihood)
    return system, [*log_likelihoods, kalman_filter(system, y).log_likelihood]


def first_guess(y: Array, states: int, generator: Generator) -> LinearSystem:
    """Return a system for EM to start from. Its A and C are random, because EM cannot tell equal states apart."""
    A = 0.8 * np.eye(states) + 0.1 * generator.standard_normal((states, states))
    C = generator.standard_normal((y.shape[1], states))
    return LinearSystem(A, C, np.eye(states), np.diag(y.var(0)), np.zeros(states), np.eye(states))


def oscillator() -> LinearSystem:
    """Return a damped oscillator, driven by noise: a state that turns once in 25 steps, seen from one side."""
    angle = 2 * np.pi / 25
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return LinearSystem(
        A=0.98 * turn, C=np.array([[1.0, 0.0]]), Q=0.05 * np.eye(2), R=np.eye(1), mu=np.zeros(2), Sigma=np.eye(2)
    )


def root_mean_square(errors: Array) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def deviations(P: Array) -> Array:
    """Return the standard deviations (T) of the estimates of the first state, whose covariances are P (T × N × N)."""
    return np.sqrt(P[:, 0, 0])


def draw_estimate(axes: Axes, name: str, colour: str, truth: Array, mean: Array, deviation: Array) -> None:
    """Draw a true sequence and its estimate with a band (T each)."""
    t, low, high = np.arange(1, len(truth) + 1), mean - BAND * deviation, mean + BAND * deviation
    axes.plot(t, truth, color=BLACK, label="true state")
    axes.plot(t, mean, color=colour, label=name)
    axes.fill_between(t, low, high, color=colour, alpha=0.2, linewidth=0, label="95 % band")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=4, columnspacing=1.4, handlelength=1.5, frameon=False)


def slide() -> Figure:
    """Return an empty figure in the shape of a slide, with letters that can be read from a distance."""
    return Figure(figsize=(10, 5.625), dpi=180, layout="constrained", facecolor="white")


def tidy(axes: Axes) -> None:
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)


def draw(x: Array, y: Array, filtered: Filtered, smoothed: Smoothed, curve: list[float]) -> Figure:
    """Draw the filter, the smoother and the log-likelihood after each iteration of EM."""
    figure = slide()
    axes = figure.subplot_mosaic([["filter", "em"], ["smoother", "em"]], width_ratios=[2, 1])
    for panel, name, colour, estimate in (
        (axes["filter"], "Kalman filter", BLUE, filtered),
        (axes["smoother"], "smoother", ORANGE, smoothed),
    ):
        panel.plot(np.arange(1, len(y) + 1), y[:, 0], ".", color=GREY, markersize=4, label="observed $y_t$")
        draw_estimate(panel, name, colour, x[:, 0], estimate.x[:, 0], deviations(estimate.P))
        panel.set_ylabel("first state (no unit)")
    axes["smoother"].set_xlabel("time step $t$")
    axes["em"].plot(curve, color=GREEN, linewidth=2, label="learnt by EM")
    axes["em"].axhline(filtered.log_likelihood, color=BLACK, linestyle="--", label="true system")
    axes["em"].set(xlabel="iteration of EM", ylabel="log-likelihood (nats)")
    axes["em"].legend(loc="lower right", frameon=False)
    for panel in axes.values():
        tidy(panel)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Filter, smooth and learn a linear dynamical system.")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="number of time steps (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=60, help="iterations of EM (default: %(default)s)")
    parser.add_argument("--output", type=Path, default="state_space.png", help="figure (default: %(default)s)")
    options = parser.parse_args(arguments)

    generator = np.random.default_rng(options.seed)
    system = oscillator()
    x, y = sample(system, options.steps, generator)
    filtered = kalman_filter(system, y)
    smoothed = smooth(system, filtered)
    _, curve = learn(first_guess(y, len(system.mu), generator), y, options.iterations)

    print(f"first state    RMSE   inside its 95 % band\nobservation   {root_mean_square(y[:, 0] - x[:, 0]):5.2f}")
    for name, estimate in (("filter", filtered), ("smoother", smoothed)):
        error = estimate.x[:, 0] - x[:, 0]
        inside = np.mean(np.abs(error) < BAND * deviations(estimate.P))
        print(f"{name:12}  {root_mean_square(error):5.2f}   {inside:.0%}")
    print(f"log-likelihood in nats: {filtered.log_likelihood:.1f} of the system that made the data,")
    print(f"    {curve[0]:.1f} of EM's first guess, {curve[-1]:.1f} after {options.iterations} iterations")
    draw(x, y, filtered, smoothed, curve).savefig(options.output)


if __name__ == "__main__":
    main()
