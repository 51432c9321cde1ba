"""Learning-rate schedules, step by step."""

import pytest

from siirl.engine.training.schedules import SCHEDULES, learning_rate_factor, warmup_length
from siirl.errors import ConfigError, UnknownNameError
from siirl.params.model_args import FALLING_SCHEDULES, FLAT_SCHEDULES


def factors(scheduler, *, warmup=0, total=None, steps=6):
    return [
        learning_rate_factor(scheduler=scheduler, step=step, warmup=warmup, total_steps=total)
        for step in range(steps)
    ]


def test_every_shipped_schedule_is_a_choice_of_the_configuration():
    assert set(FLAT_SCHEDULES + FALLING_SCHEDULES) <= set(SCHEDULES)
    shipped = {name for name, factor in SCHEDULES.items() if factor.__module__.startswith("siirl")}
    assert shipped == set(FLAT_SCHEDULES + FALLING_SCHEDULES)


def test_the_constant_schedule_stays_constant():
    assert factors("constant", steps=3) == [1.0, 1.0, 1.0]


def test_warm_up_is_linear_and_its_first_step_is_not_wasted():
    assert factors("constant_with_warmup", warmup=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_zero_after_the_last_step_and_stays():
    assert factors("linear_with_warmup", warmup=0, total=4) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert factors("linear", total=4) == factors("linear_with_warmup", total=4)


def test_cosine_is_half_at_half_of_the_rest():
    assert factors("cosine_with_warmup", warmup=1, total=5)[:4] == pytest.approx(
        [0.5, 1.0, 0.853553, 0.5]
    )


def test_a_run_that_is_all_warm_up_works():
    assert factors("cosine_with_warmup", warmup=2, total=2, steps=3) == [
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
        1.0,
    ]


def test_steps_of_warm_up_go_before_their_ratio():
    assert (
        warmup_length(
            scheduler="cosine_with_warmup", warmup_steps=7, warmup_ratio=0.5, total_steps=10
        )
        == 7
    )
    assert (
        warmup_length(
            scheduler="cosine_with_warmup", warmup_steps=None, warmup_ratio=0.25, total_steps=10
        )
        == 3
    )
    assert (
        warmup_length(scheduler="constant", warmup_steps=7, warmup_ratio=0.5, total_steps=10) == 0
    )


def test_a_warm_up_ratio_of_an_endless_run_is_refused():
    with pytest.raises(ConfigError, match=r"warmup_ratio=0.1 needs trainer.total_steps"):
        warmup_length(
            scheduler="constant_with_warmup", warmup_steps=None, warmup_ratio=0.1, total_steps=None
        )


def test_a_decay_without_an_end_is_refused():
    with pytest.raises(ConfigError, match=r"cosine_with_warmup needs the length of the run"):
        factors("cosine_with_warmup")


def test_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError, match=r"'cosin_with_warmup'.*Did you mean 'cosine_with_warmup'"
    ):
        factors("cosin_with_warmup")
