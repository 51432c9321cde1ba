"""Signs in the metrics that a run does not learn: one warning for each."""

import pytest

from siirl.reporting.metric_writers import WARNINGS_FILE, MetricWriters, RunDescription
from siirl.reporting.metrics import Reduced
from siirl.reporting.sentinels import Sentinels

Step = dict[str, Reduced]


def warnings(*steps: Step) -> list[tuple[int, str]]:
    """Number of the step, from 1, and text of every warning."""
    sentinels = Sentinels()
    return [
        (number, text)
        for number, step in enumerate(steps, start=1)
        for text in sentinels.look(step)
    ]


def test_a_sound_run_gets_no_warning() -> None:
    step: Step = {
        "reward/score": [0.0, 1.0],
        "actor/updates": 4.0,
        "actor/weights_unchanged": 0.0,
        "actor/lr": 1e-4,
        "actor/grad_norm": 0.5,
        "actor/ppo_kl": 0.004,
        "actor/entropy": 0.9,
        "rollout/success_rate": 0.5,
        "rollout/door-open/success_rate": 0.5,
        "rollout/door-open/mixed_groups": 0.25,
        "data/prompts_nearly_held_out": 0.0,
    }
    assert warnings(*[step] * 30) == []


@pytest.mark.parametrize(
    ("reward", "remedy"),
    [(0.0, "siirl warm-start"), (1.0, "use harder ones"), (0.3, "reward function")],
)
def test_a_reward_that_is_constant_for_ten_steps_is_warned_of_once(
    reward: float, remedy: str
) -> None:
    [(step, text)] = warnings(*[{"reward/score": [reward, reward]}] * 25)
    assert step == 10
    assert f"Every reward of the last 10 steps was {reward:g}." in text and remedy in text


def test_rewards_that_differ_within_or_between_steps_are_not_constant() -> None:
    assert warnings(*[{"reward/score": [0.0, 1.0]}] * 20) == []
    assert warnings(*[{"reward/score": [float(step % 2)]} for step in range(20)]) == []


def test_a_step_without_a_scored_trajectory_neither_counts_nor_interrupts() -> None:
    scored: list[Step] = [{"reward/score": [0.0]}] * 9
    [(step, _)] = warnings(*scored, {"reward/score": []}, {"reward/score": [0.0]})
    assert step == 11


def test_an_update_that_changes_no_weight_is_warned_of() -> None:
    unchanged: Step = {"actor/weights_unchanged": 1.0, "actor/lr": 1e-12, "actor/grad_norm": 0.5}
    [(step, text)] = warnings({"actor/weights_unchanged": 0.0}, unchanged, unchanged)
    assert step == 2 and "learning rate 1e-12" in text and "optim.lr" in text


@pytest.mark.parametrize("idle", ["actor/lr", "actor/grad_norm"])
def test_an_update_of_size_zero_that_changes_no_weight_gets_no_warning(idle: str) -> None:
    step: Step = {
        "actor/weights_unchanged": 1.0,
        "actor/lr": 1e-4,
        "actor/grad_norm": 0.5,
        idle: 0.0,
    }
    assert warnings(step) == []


def test_entropy_below_a_fiftieth_of_its_beginning_for_five_steps_is_warned_of() -> None:
    low: Step = {"actor/entropy": 0.01, "rollout/success_rate": 0.4}
    [(step, text)] = warnings({"actor/entropy": 1.0}, *[low] * 8)
    assert step == 6 and "from 1 to 0.01 nats" in text and "entropy_coef" in text


def test_a_policy_that_solves_its_tasks_may_have_no_entropy() -> None:
    solved: Step = {"actor/entropy": 0.001, "rollout/success_rate": 0.95}
    assert warnings({"actor/entropy": 1.0}, *[solved] * 20) == []


def test_three_steps_without_a_group_to_train_on_are_warned_of_with_the_main_reason() -> None:
    solved: Step = {
        "actor/updates": 0.0,
        "sampling/dropped_all_success": 90.0,
        "sampling/dropped_truncated": 6.0,
    }
    [(step, text)] = warnings(*[solved] * 4)
    assert step == 3
    assert (
        "(trajectories dropped: all success 90, truncated 6)" in text
        and "Tasks whose rollouts all succeed are solved" in text
        and "length limit" not in text  # of a few trajectories
    )


def test_solved_tasks_beside_hopeless_ones_are_told_apart() -> None:
    step: Step = {
        "actor/updates": 0.0,
        "sampling/dropped_all_success": 4.0,
        "sampling/dropped_all_failure_without_reference": 4.0,
    }
    [(_, text)] = warnings(*[step] * 4)
    assert "all succeed are solved" in text and "all fail no success is known" in text


def test_a_task_whose_start_states_decide_is_neither_solved_nor_hopeless() -> None:
    step: Step = {
        "actor/updates": 0.0,
        "rollout/push/success_rate": 0.5,
        "sampling/dropped_all_success": 4.0,
        "sampling/dropped_all_failure_without_reference": 4.0,
    }
    [(_, text)] = warnings(*[step] * 4)
    assert text.count("The start state decides the outcome") == 1
    assert "are solved" not in text and "no success is known" not in text


def test_three_steps_of_one_decision_are_warned_of_without_groups() -> None:
    [(step, text)] = warnings(*[{"actor/updates": 0.0, "critic/updates": 1.0}] * 4)
    assert step == 3
    assert text.startswith("Every advantage of the last 3 steps was 0. Whitening subtracts")


def test_critic_warmup_and_skipped_updates_are_not_filtered_groups() -> None:
    assert warnings(*[{"actor/updates": 0.0, "critic/warmup": 1.0}] * 5) == []
    assert warnings(*[{"actor/updates": 0.0, "actor/skipped_updates": 2.0}] * 5) == []


@pytest.mark.parametrize(
    ("success", "remedy"),
    [
        (1.0, "data.task_sampling=learnable"),
        (0.5, "The start state decides the outcome"),
        (0.02, "or leave the task out"),
        (0.0, "or leave the task out"),
    ],
)
def test_a_task_without_a_mixed_group_for_twenty_steps_is_named_once_with_the_remedy_for_its_success(
    success: float, remedy: str
) -> None:
    step: Step = {
        "rollout/door-open/mixed_groups": 0.5,
        "rollout/door-open/success_rate": 0.5,
        "rollout/hammer/mixed_groups": 0.0,
        "rollout/hammer/success_rate": success,
    }
    [(number, text)] = warnings(*[step] * 45)
    assert number == 20
    assert text.startswith("hammer: 0% of the groups of the last 20 steps") and remedy in text


def hammer(mixed: float, success: float, **others: float) -> Step:
    """A step of a hammer task, beside a door that can be learnt."""
    return {
        "rollout/hammer/mixed_groups": mixed,
        "rollout/hammer/success_rate": success,
        "rollout/door-open/mixed_groups": 0.5,
        "rollout/door-open/success_rate": 0.5,
        **others,
    }


def test_a_tenth_of_mixed_groups_is_enough() -> None:
    assert warnings(*[hammer(0.0, 0.3), hammer(0.25, 0.3)] * 15) == []
    [(number, text)] = warnings(*[*[hammer(0.0, 0.3)] * 4, hammer(0.25, 0.5)] * 8)
    assert number == 20 and text.startswith("hammer: 5% of the groups of the last 20 steps")
    assert "34% of the rollouts succeeded" in text


def test_each_unmixed_task_is_named_when_it_becomes_one() -> None:
    rare, solved = (
        hammer(0.0, 0.01),
        hammer(0.0, 0.01)
        | {
            "rollout/door-open/mixed_groups": 0.0,
            "rollout/door-open/success_rate": 1.0,
        },
    )
    (first, one), (second, other) = warnings(*[rare] * 25, *[solved] * 25)
    assert (first, second) == (20, 42) and one.startswith("hammer") and "door-open: 8%" in other


def test_solved_tasks_alone_get_no_warning_of_unmixed_groups() -> None:
    solved = hammer(0.0, 1.0) | {"rollout/door-open/success_rate": 0.95}
    assert warnings(*[solved] * 20) == []


def test_rewards_that_do_not_follow_the_true_distance_are_warned_of() -> None:
    name = "reward/oracle_rank_correlation"
    assert warnings(*[{name: 0.4}, {name: -0.3}] * 15) == []
    [(number, text)] = warnings(*[{name: 0.3}, {}, {name: -0.4}] * 14)
    assert number == 30 and "a rank correlation of -0.05 with" in text and "reward=success" in text


def test_a_value_without_skill_is_named_by_task() -> None:
    step: Step = {
        "reward/value_skill": 0.2,
        "reward/object/1/value_skill": 0.0,
        "reward/reach/value_skill": 0.4,
    }
    [(number, text)] = warnings(*[step] * 9, step | {"reward/value_skill": 0.0}, *[step] * 5)
    assert number == 10 and text.startswith("object/1: in the last 10 steps the reward could")


def test_a_step_without_groups_of_a_task_does_not_count_for_it() -> None:
    unmixed = hammer(0.0, 1.0)
    steps: list[Step] = [unmixed] * 19 + [{}] * 5 + [unmixed]
    [(number, _)] = warnings(*steps)
    assert number == 25


STANDING: Step = {"actor/updates": 8.0, "actor/lr": 2e-4, "actor/ppo_kl": -3e-6}


def test_ten_steps_of_updates_that_hardly_move_the_policy_are_warned_of() -> None:
    [(number, text)] = warnings(*[STANDING] * 25)
    assert number == 10
    assert "less than 1e-05 nats per token at a learning rate of 0.0002" in text


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param({"actor/updates": 0.0}, id="nothing was updated"),
        pytest.param({"actor/updates": 1.0}, id="one optimiser step measures no KL"),
        pytest.param({"actor/lr": 5e-5}, id="the schedule lowered the rate"),
        pytest.param({"actor/ppo_kl": 2e-3}, id="the policy moves"),
    ],
)
def test_a_policy_that_does_not_move_for_a_known_reason_gives_no_warning(cause: Step) -> None:
    found = warnings({**STANDING, "actor/ppo_kl": 1e-3}, *[{**STANDING, **cause}] * 20)
    assert not [text for _, text in found if "moved the policy" in text]


def test_held_out_prompts_that_train_are_counted_once() -> None:
    [(step, text)] = warnings(*[{"data/prompts_nearly_held_out": 3.0}] * 2)
    assert step == 1 and text.startswith("3 training prompts") and "data.val_files" in text


def test_a_warning_is_shown_and_kept_in_the_run_folder(tmp_path, capsys) -> None:
    for loggers in (["console"], []):
        with MetricWriters(loggers, RunDescription(tmp_path, total_steps=1)) as writers:
            writers.warn("Every reward was 0.")
    shown = capsys.readouterr()
    assert (
        "Warning: Every reward was 0." in shown.out and "Warning: Every reward was 0." in shown.err
    )
    assert (tmp_path / WARNINGS_FILE).read_text() == "Every reward was 0.\n" * 2


def of_tasks(**successes: float) -> Step:
    """Metrics of a step with a group of each task."""
    return {
        name: value
        for task, success in successes.items()
        for name, value in (
            (f"rollout/{task}/success_rate", success),
            (f"rollout/{task}/mixed_groups", 0.5),
        )
    }


def test_success_that_falls_by_more_than_chance_is_warned_of_once() -> None:
    at_first = [of_tasks(sums=0.25, sorting=0.35), of_tasks(sums=0.35, sorting=0.45)] * 5
    fallen = [of_tasks(sums=0.15, sorting=0.25), of_tasks(sums=0.25, sorting=0.35)] * 10
    [(step, text)] = warnings(*at_first, *fallen)
    assert step == 20
    assert "fell from 35% in the first 10 steps to 25% in the last 10" in text
    assert "optim.lr" in text


@pytest.mark.parametrize("later", [0.3, 0.4, 0.33])
def test_success_that_stays_or_rises_or_falls_a_little_gets_no_warning(later: float) -> None:
    at_first = [of_tasks(sums=0.3), of_tasks(sums=0.4)] * 5
    assert warnings(*at_first, *[of_tasks(sums=later)] * 30) == []


def test_a_fall_that_the_spread_between_steps_explains_gets_no_warning() -> None:
    at_first = [of_tasks(sums=0.0), of_tasks(sums=0.8)] * 5
    later = [of_tasks(sums=0.0), of_tasks(sums=0.5)] * 10
    assert warnings(*at_first, *later) == []


def test_other_tasks_in_a_step_do_not_look_like_a_fall() -> None:
    easy, hard = of_tasks(sums=0.8), of_tasks(products=0.1)
    assert warnings(*[easy] * 10, *[hard] * 30) == []
