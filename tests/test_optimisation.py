"""Tests of optimisation: schedules follow their formulas, and optimisers are chosen by name."""

import pytest
import torch
from omegaconf import OmegaConf

from seqtool.errors import InputError
from seqtool.training.optimisation import can_continue, check_optimisation, make_optimiser, make_schedule


def test_the_constant_schedule_may_have_a_warm_up() -> None:
    schedule = make_schedule({"name": "constant", "warmup": 10})
    assert [schedule(step, 0, 0) for step in (1, 5, 10, 99)] == [0.1, 0.5, 1, 1]
    assert make_schedule({"name": "constant", "warmup": 0})(1, 0, 0) == 1


def test_the_inverse_square_root_schedule_follows_its_formula() -> None:
    schedule = make_schedule({"name": "inverse_square_root", "warmup": 100})
    assert schedule(50, 0, 0) == pytest.approx(0.5)
    assert schedule(100, 0, 0) == pytest.approx(1)
    assert schedule(400, 0, 0) == pytest.approx(0.5)


def test_the_cosine_schedule_ends_at_0() -> None:
    schedule = make_schedule({"name": "cosine", "warmup": 10, "epochs": 4})
    rates = [schedule(99, epoch, 0) for epoch in (0, 1, 2, 4, 5)]
    assert rates == pytest.approx([1, 0.5 + 2**-1.5, 0.5, 0, 0])
    assert schedule(5, 2, 0) == pytest.approx(0.25)
    with pytest.raises(InputError, match=r"^schedule=cosine needs an end; set train\.epochs, or schedule\.epochs\.$"):
        make_schedule({"name": "cosine", "warmup": 10, "epochs": None})
    with pytest.raises(InputError, match=r"^schedule\.epochs must be above 0, not 0\.0\.$"):
        make_schedule({"name": "cosine", "warmup": 10, "epochs": 0})


def test_the_rate_is_halved_by_epochs_as_in_the_paper() -> None:
    """Sutskever et al. 2014, section 3.4: after 5 epochs it is halved every half epoch, for 7.5 epochs in all."""
    schedule = make_schedule({"name": "halve_by_epoch", "start": 5.0, "every": 0.5})
    rates = [schedule(1, epoch, 0) for epoch in (0, 4.9, 5.0, 5.4, 5.5, 6.0, 7.0)]
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.125, 0.03125]


def test_the_rate_is_halved_on_plateaus() -> None:
    schedule = make_schedule({"name": "halve_on_plateau", "warmup": 4, "patience": 1})
    assert [schedule(9, 0, plateaus) for plateaus in (0, 1, 2)] == [1, 0.5, 0.25]
    assert schedule(2, 0, 1) == 0.25


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "adam", "lr": 0.1, "betas": [0.9, 0.98], "eps": 1e-9},
        {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.1},
        {"name": "adadelta", "lr": 1.0, "rho": 0.95, "eps": 1e-6},
        {"name": "rmsprop", "lr": 0.1, "alpha": 0.95, "eps": 1e-4, "momentum": 0.9, "centered": True},
        {"name": "sgd", "lr": 0.7, "momentum": 0.0},
    ],
)
def test_every_optimiser_descends(settings: dict[str, object]) -> None:
    x = torch.nn.Parameter(torch.ones(3))
    optimiser = make_optimiser(settings, [x])
    for _ in range(20):
        optimiser.zero_grad()
        (x - 3).square().sum().backward()
        optimiser.step()
    assert float((x.detach() - 3).norm()) < 2 * 3**0.5


@pytest.mark.parametrize(("settings", "fused"), [({}, True), ({"fused": False}, False), ({"foreach": True}, None)])
def test_adam_is_fused_unless_settings_forbid_it(settings: dict[str, bool], fused: bool | None) -> None:
    optimiser = make_optimiser({"name": "adam", **settings}, [torch.nn.Parameter(torch.ones(1))])
    assert optimiser.defaults["fused"] is fused


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "adam", "differentiable": True}, r"a leaf .* used in an in-place operation\."),
        ({"name": "rmsprop", "capturable": True}, r"If capturable=True, .* must be on supported devices: \[.*\]\."),
    ],
)
def test_settings_that_fail_at_the_first_step_are_refused(
    settings: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=rf"^The settings optim\.\* do not suit {settings['name']}: {reason}$"):
        check_optimisation(OmegaConf.create(settings), OmegaConf.create({"name": "constant", "warmup": 0}))


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"^The settings optim\.\* do not suit adam: .*fused.* and .*foreach"):
        make_optimiser({"name": "adam", "fused": True, "foreach": True}, [torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(InputError, match=r"^Unknown optimiser ''; choose from adadelta, adam,"):
        make_optimiser({"lr": 1.0}, [torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(InputError, match=r"^Setting 'schedule\.name' must be text, not \{\}\.$"):
        make_schedule({"name": {}})
    with pytest.raises(InputError, match=r"^Unknown optimiser 'adan'; did you mean 'adam'\?$"):
        make_optimiser({"name": "adan"}, [torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(InputError, match=r"^optim\.betas must be 2 numbers from 0 to below 1, not \[0\.9\]\.$"):
        make_optimiser({"name": "adam", "betas": [0.9]}, [torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(InputError, match=r"^optim\.lr must be at least 0, not -1\.$"):
        make_optimiser({"name": "adam", "lr": -1.0}, [torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(InputError, match=r"^Unknown schedule 'constan'; did you mean 'constant'\?$"):
        make_schedule({"name": "constan"})
    with pytest.raises(InputError, match=r"^Unknown setting 'schedule\.warm'.*missing setting 'schedule\.warmup'"):
        make_schedule({"name": "constant", "warm": 1})


def test_what_an_optimiser_has_not_collected_cannot_be_switched_on() -> None:
    rmsprop = {"name": "rmsprop", "lr": 0.1, "alpha": 0.9, "momentum": 0.0, "centered": False}
    assert can_continue(rmsprop, {**rmsprop, "lr": 0.2, "alpha": 0.5})
    assert not can_continue(rmsprop, {**rmsprop, "centered": True})
    assert not can_continue(rmsprop, {**rmsprop, "momentum": 0.9})
    assert can_continue({**rmsprop, "centered": True, "momentum": 0.9}, rmsprop)
    sgd = {"name": "sgd", "lr": 0.1, "momentum": 0.0}
    assert can_continue(sgd, {**sgd, "momentum": 0.9})  # a momentum that begins with the next gradient
