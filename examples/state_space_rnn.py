"""How sure is a filter of a network's hidden state? The extended Kalman filter and a particle filter on a noisy RNN.

    h_t = tanh(W h_{t-1} + U x_t + b) + w_t,   w_t ~ N(0, Q)      t = 1, …, T, from h_0 = 0
    y_t = V h_t + c + v_t,                     v_t ~ N(0, R)

The letters are those of recurrent networks: x_t is the network's input, h_t its hidden state and y_t its output, of
which only x_t and y_t are observed. (The state that `state_space.py` calls x is h here.) P is the covariance of an
estimate of h. In shapes, T is the number of time steps, I of inputs, H of hidden units, D of outputs, and M of
particles.

Sources: Jazwinski (1970), "Stochastic processes and filtering theory", for the extended Kalman filter; Gordon, Salmond
and Smith (1993), IEE Proceedings F 140, for the bootstrap particle filter; Kitagawa (1996), Journal of Computational
and Graphical Statistics 5, for systematic resampling; Kong, Liu and Wong (1994), Journal of the American Statistical
Association 89, for the effective sample size; Bar-Shalom, Li and Kirubarajan (2001), "Estimation with applications to
tracking and navigation", section 5.4, for the NEES (normalised estimation error squared).

    python examples/state_space_rnn.py --output state_space_rnn.png
"""
# ruff: noqa: N806

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.random import Generator
from numpy.typing import NDArray
from state_space import BLUE, GREY, ORANGE, Array, correct, deviations, draw_estimate, root_mean_square, slide, tidy

EXTENDED, PARTICLE = "extended Kalman filter", "particle filter"
COLOURS = {EXTENDED: BLUE, PARTICLE: ORANGE}


class Activation(NamedTuple):
    """An elementwise function and its derivative."""

    function: Callable[[Array], Array]
    derivative: Callable[[Array], Array]


TANH = Activation(np.tanh, lambda a: 1 - np.tanh(a) ** 2)
IDENTITY = Activation(lambda a: a, np.ones_like)  # makes the network a linear dynamical system


class NoisyNetwork(NamedTuple):
    """The parameters of a recurrent network with noise."""

    W: Array  # H × H
    U: Array  # H × I
    b: Array  # H
    V: Array  # D × H
    c: Array  # D
    Q: Array  # H × H
    R: Array  # D × D
    activation: Activation = TANH


class Estimates(NamedTuple):
    """Means h and covariances P of each hidden state, given the observations up to its own time step."""

    h: Array  # T × H
    P: Array  # T × H × H
    log_likelihood: float  # of all outputs, in nats; as approximate as the filter
    effective: Array | None = None  # T, a particle filter's effective sample sizes, between 1 and M


def sample(network: NoisyNetwork, x: Array, generator: Generator) -> tuple[Array, Array]:
    """Draw hidden states (T × H) and outputs (T × D) for the inputs x (T × I)."""
    W, U, b, V, c, Q, R, activation = network
    w = generator.multivariate_normal(np.zeros(len(Q)), Q, len(x), method="cholesky")
    v = generator.multivariate_normal(np.zeros(len(R)), R, len(x), method="cholesky")
    h = np.zeros((len(x) + 1, len(b)))  # h[0] is h_0
    for t in range(len(x)):
        h[t + 1] = activation.function(W @ h[t] + U @ x[t] + b) + w[t]
    return h[1:], h[1:] @ V.T + c + v


def extended_kalman_filter(network: NoisyNetwork, x: Array, y: Array) -> Estimates:
    """Filter as if the network were linear around each estimate: exact if its activation is the identity."""
    W, U, b, V, c, Q, R, activation = network
    h, P, log_likelihood = np.zeros(len(b)), np.zeros_like(Q), 0.0
    means, covariances = np.empty((len(y), len(b))), np.empty((len(y), *Q.shape))
    for t in range(len(y)):
        a = W @ h + U @ x[t] + b
        F = activation.derivative(a)[:, None] * W  # the Jacobian of the next state with respect to h
        h_predicted, P_predicted = activation.function(a), F @ P @ F.T + Q
        h, P, log_density = correct(h_predicted, P_predicted, y[t] - V @ h_predicted - c, V, R)
        means[t], covariances[t] = h, P
        log_likelihood += log_density
    return Estimates(means, covariances, log_likelihood)


def particle_filter(network: NoisyNetwork, x: Array, y: Array, particles: int, generator: Generator) -> Estimates:
    """Filter by M weighted samples of the hidden state: the bootstrap filter, which lets each particle follow the
    network and weights it by the density of the observed output. When the effective sample size is below M/2, the
    particles are resampled, so that none are spent on states that have become unlikely.
    """
    W, U, b, V, c, Q, R, activation = network
    root_Q, root_R = np.linalg.cholesky(Q), np.linalg.cholesky(R)
    means, covariances, effective = np.empty((len(y), len(b))), np.empty((len(y), *Q.shape)), np.empty(len(y))
    h, log_weights, log_likelihood = np.zeros((particles, len(b))), np.full(particles, -np.log(particles)), 0.0
    for t in range(len(y)):
        h = activation.function(h @ W.T + U @ x[t] + b) + generator.standard_normal(h.shape) @ root_Q.T
        whitened = np.linalg.solve(root_R, (y[t] - h @ V.T - c).T)  # D × M
        log_weights -= 0.5 * ((whitened**2).sum(0) + np.linalg.slogdet(2 * np.pi * R).logabsdet)
        log_density = np.logaddexp.reduce(log_weights)  # of y_t given the outputs before it
        log_weights -= log_density
        log_likelihood += log_density
        weights = np.exp(log_weights)
        means[t] = weights @ h
        covariances[t] = (weights[:, None] * (h - means[t])).T @ (h - means[t])
        effective[t] = 1 / (weights**2).sum()
        if effective[t] < particles / 2:
            h = h[systematic_resampling(weights, generator)]
            log_weights = np.full(particles, -np.log(particles))
    return Estimates(means, covariances, float(log_likelihood), effective)


def systematic_resampling(weights: Array, generator: Generator) -> NDArray[np.intp]:
    """Return the numbers of M particles, each repeated M times its weight, rounded up or down: an evenly spaced comb
    with one random offset is laid over the cumulative weights.
    """
    cumulative = np.cumsum(weights)
    cumulative[-1] = 1.0  # despite rounding
    comb = (generator.random() + np.arange(len(weights))) / len(weights)
    return np.searchsorted(cumulative, comb)


def normalised_error(h: Array, estimates: Estimates) -> Array:
    """Return the NEES of each step (T): eᵀ P⁻¹ e, where e is the true state minus its estimate.

    Its mean over many runs is H if the means and covariances are exact. If it is larger, the errors are larger than the
    covariances say: the filter is overconfident.
    """
    e = (h - estimates.h)[:, :, None]
    return (e.transpose(0, 2, 1) @ np.linalg.solve(estimates.P, e))[:, 0, 0]


def chi_square_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of the chi-square distribution by the approximation of Wilson and Hilferty (1931), whose error
    is below 0.1 % for the probabilities 0.025 and 0.975 and at least 30 degrees of freedom.
    """
    spread = 2 / (9 * degrees)
    root: float = 1 - spread + NormalDist().inv_cdf(probability) * math.sqrt(spread)
    return degrees * root**3


def error_band(runs: int, hidden: int) -> tuple[float, float]:
    """Return the limits between which the mean NEES of a step over independent runs lies with 95 % probability, if the
    filter is exact and the errors are Gaussian.
    """
    return chi_square_quantile(0.025, runs * hidden) / runs, chi_square_quantile(0.975, runs * hidden) / runs


def verdict(nees: float, band: tuple[float, float]) -> str:
    return "overconfident" if nees > band[1] else "underconfident" if nees < band[0] else "consistent"


def switches() -> NoisyNetwork:
    """Return two units that hold their signs until the input or noise flips them; the output is a noisy weighted sum.

    At ±1 tanh is flat. There the extended Kalman filter expects all uncertainty but that of the newest noise to vanish,
    and does not see that a unit may have the opposite sign.
    """
    W, U, V = np.array([[2.0, -0.5], [0.5, 2.0]]), np.array([[0.5], [-0.5]]), np.array([[1.0, 0.5]])
    return NoisyNetwork(W, U, b=np.zeros(2), V=V, c=np.zeros(1), Q=0.1 * np.eye(2), R=np.eye(1))


class Run(NamedTuple):
    """The true hidden states of a run (T × H), and what each filter makes of them."""

    h: Array
    estimates: dict[str, Estimates]


def make_run(network: NoisyNetwork, steps: int, particles: int, generator: Generator) -> Run:
    """Draw inputs, states and outputs, and filter them."""
    x = generator.standard_normal((steps, network.U.shape[1]))
    h, y = sample(network, x, generator)
    extended = extended_kalman_filter(network, x, y)
    return Run(h, {EXTENDED: extended, PARTICLE: particle_filter(network, x, y, particles, generator)})


def mean_errors(runs: Sequence[Run], name: str) -> Array:
    """Return a filter's NEES at each step (T), averaged over the runs."""
    errors: Array = np.mean([normalised_error(run.h, run.estimates[name]) for run in runs], axis=0)
    return errors


def table(runs: Sequence[Run]) -> str:
    """Say which filter is overconfident. For the mean over all steps, the band of one step is wider than necessary."""
    steps, hidden = runs[0].h.shape
    low, high = error_band(len(runs), hidden)
    lines = [
        f"{len(runs)} runs of {steps} steps. NEES of an exact filter: {hidden}, 95 % band {low:.2f} to {high:.2f}",
        f"{'filter':24}{'RMSE':>6}{'NEES':>7}  verdict",
    ]
    for name in COLOURS:
        rmse = root_mean_square(np.array([run.h - run.estimates[name].h for run in runs]))
        nees = float(mean_errors(runs, name).mean())
        lines.append(f"{name:24}{rmse:6.2f}{nees:7.2f}  {verdict(nees, (low, high))}")
    effective = np.mean([run.estimates[PARTICLE].effective for run in runs])
    lines.append(f"mean effective sample size of the particle filter: {effective:.0f} particles")
    return "\n".join(lines)


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the NEES of both filters, and their estimates of the first unit in the run in which the NEES of the extended
    Kalman filter is the median.
    """
    run = sorted(runs, key=lambda run: normalised_error(run.h, run.estimates[EXTENDED]).mean())[len(runs) // 2]
    figure = slide()
    axes = figure.subplot_mosaic([[EXTENDED, "nees"], [PARTICLE, "nees"]], width_ratios=[1.6, 1])
    steps, hidden = run.h.shape
    for name, colour in COLOURS.items():
        estimates = run.estimates[name]
        draw_estimate(axes[name], name, colour, run.h[:, 0], estimates.h[:, 0], deviations(estimates.P))
        axes[name].set_ylabel("first unit $h_t$ (no unit)")
        axes["nees"].plot(np.arange(1, steps + 1), mean_errors(runs, name), color=colour, label=name)
    axes[PARTICLE].set_xlabel("time step $t$")
    axes["nees"].axhspan(*error_band(len(runs), hidden), color=GREY, alpha=0.35, linewidth=0, label="exact: 95 % band")
    axes["nees"].set(xlabel="time step $t$", ylabel=f"NEES, mean of {len(runs)} runs (exact: {hidden})", ylim=(0, None))
    axes["nees"].legend(loc="center right", framealpha=1, edgecolor="white")
    for panel in axes.values():
        tidy(panel)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare two filters of a noisy recurrent network's hidden state.")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="number of time steps (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=200, help="number of runs (default: %(default)s)")
    parser.add_argument("--particles", type=int, default=500, help="number of particles (default: %(default)s)")
    parser.add_argument("--output", type=Path, default="state_space_rnn.png", help="figure (default: %(default)s)")
    options = parser.parse_args(arguments)

    generator = np.random.default_rng(options.seed)
    runs = [make_run(switches(), options.steps, options.particles, generator) for _ in range(options.runs)]
    print(table(runs))
    draw(runs).savefig(options.output)


if __name__ == "__main__":
    main()
