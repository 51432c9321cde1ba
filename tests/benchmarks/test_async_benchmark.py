"""The parts of the staleness benchmark: the metrics that it reads from a run, and its slow
tools.
"""

import numpy as np
import pytest

from benchmarks.async_learning import WINDOW, measure, ratios, short_calls, simulators_busy
from benchmarks.slow_tools import SlowToolEnv
from siirl.models.chat import load_chat_tokenizer


def run_of(success, *, step_s):
    """Metrics of steps of equal length; the last one ends with an evaluation of 100 s."""
    rows = [
        {
            "step": i + 1,
            "time": 50.0 + step_s * (i + 1),
            "time/step_s": step_s,
            "reward/success_rate": value,
            "staleness/samples": {"mean": 0.5},
        }
        for i, value in enumerate(success)
    ]
    rows[-1] |= {"time": rows[-1]["time"] + 100.0, "time/evaluation_s": 100.0}
    return rows


def test_the_time_to_a_target_excludes_evaluations():
    found = measure(run_of([0.0] + [0.9] * (WINDOW + 1), step_s=2.0), targets=(0.8, 0.95))
    assert found["steps_to"] == {"0.8": WINDOW + 1, "0.95": None}  # the first mean is 0.72
    assert found["seconds_to"] == {"0.8": 2.0 * (WINDOW + 1), "0.95": None}
    assert found["seconds"] == 2.0 * (WINDOW + 2)
    assert found["versions_behind"] == 0.5


def test_ratios_compare_arms_of_one_seed_and_need_both_to_reach_the_target():
    def run(arm, seed, seconds, reached):
        return {
            "arm": arm,
            "seed": seed,
            "seconds": seconds,
            "steps": 10,
            "seconds_to": {"0.8": reached},
        }

    runs = [run("0", 1, 100.0, 60.0), run("2", 1, 50.0, 20.0), run("2", 2, 10.0, 5.0)]
    assert ratios(runs) == {"2": {"step": [2.0], "0.8": [3.0]}}
    assert ratios([runs[0], run("2", 1, 50.0, None)])["2"]["0.8"] == [None]


def test_simulators_are_busy_for_a_share_of_the_whole_run_and_not_of_the_rollouts_alone():
    lockstep = {"env/busy_share": 0.8, "time/rollout_actor_s": 3.0, "time/step_s": 4.0}
    assert simulators_busy([lockstep]) == pytest.approx(0.6)
    ahead = {"env/busy_share": 0.8, "group/rollout/idle_share": 0.5, "time/step_s": 4.0}
    assert simulators_busy([lockstep, ahead]) == pytest.approx(0.5)  # of 0.6 and 0.4
    assert simulators_busy([{"time/step_s": 4.0}]) is None


def test_answers_take_half_a_second_in_the_median_and_ten_in_one_of_a_hundred():
    env = SlowToolEnv(tasks=["sums-3"])
    times = [env._times.lognormvariate(env._mean, env._deviation) for _ in range(20_000)]
    assert np.median(times) == pytest.approx(0.5, rel=0.1)
    assert np.quantile(times, 0.99) == pytest.approx(10.0, rel=0.2)


def test_a_call_has_one_token_before_and_one_after_its_expression(tmp_path):
    short_calls(tmp_path / "model")
    tokenizer = load_chat_tokenizer(tmp_path / "model")
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12+3"}}\n</tool_call>'
    assert len(tokenizer.encode_text(call)) == 1 + len("12+3") + 1
    assert tokenizer.decode(tokenizer.encode_text(call)) == call
