"""The benchmark of control: scores of tenths, equal steps, and CleanRL's file as it is."""

import json
import subprocess
import sys
from dataclasses import replace

from benchmarks.control import by_tenths, table
from benchmarks.control_clock import table as clock_table
from benchmarks.control_tasks import TASKS

FILE_FOR_GYMNASIUM_0_29 = """
import sys
import gymnasium as gym

def make():
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
    return gym.wrappers.TransformObservation(env, lambda seen: seen * 0)

envs = gym.vector.SyncVectorEnv([make, make])
seen, _ = envs.reset(seed=1)
assert sys.argv[1:5] == ["--env-id", "CartPole-v1", "--seed", "1"]
for _ in range(int(sys.argv[6]) // 2):
    seen, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample() * 0)
    assert not seen.any()
    for info in infos.get("final_info", ()):
        assert "episode" in info and info["episode"]["r"]
"""


def test_a_tenth_has_the_mean_of_the_episodes_that_ended_in_it():
    found = by_tenths([(10, 2.0, 1), (11, 4.0, 1), (20, 7.0, 2), (100, 1.0, 1)], steps=100)
    assert found == [2.0, 6.0, *[None] * 7, 1.0]


def test_contenders_take_the_steps_of_whole_updates():
    task = replace(TASKS["CartPole-v1"], steps=1000, environments=8, decisions=32)
    assert [task.steps_within(most) for most in (None, 600, 2000)] == [768, 512, 768]


RUN = {
    "task": "CartPole-v1",
    "arm": "sb3",
    "last": 8.0,
    "mean": 4.0,
    "processor_seconds": 3.0,
    "steps": 512,
    "revision": "one",
}


def test_other_lengths_of_a_task_have_their_own_lines():
    runs = [{**RUN, "seed": seed, "steps": steps} for steps, seed in ((512, 1), (256, 1), (512, 2))]
    assert table({"runs": runs}).splitlines()[-2:] == [
        "| CartPole-v1 | 256 | sb3 | 1 | 8.0 (8) | 4.0 | 3 |  |",
        "| CartPole-v1 | 512 | sb3 | 1, 2 | 8.0 (8, 8) | 4.0 | 3 |  |",
    ]


def test_processor_time_is_compared_within_a_seed_and_a_revision_only():
    own = {**RUN, "arm": "siirl", "processor_seconds": 6.0}
    runs = [
        {**RUN, "seed": 1},
        {**RUN, "seed": 2},
        {**own, "seed": 1, "revision": "one-dirty"},
        {**own, "seed": 2, "revision": "two"},
        {**own, "seed": 3},
    ]
    (line,) = [line for line in table({"runs": runs}).splitlines() if "| siirl |" in line]
    assert line.endswith("| 6 | 2.00 (1) |")


def test_the_clock_is_compared_with_the_faster_form_of_stable_baselines3():
    seconds = {"siirl": [3.0, 9.0, 4.0], "sb3": [2.0], "sb3, processes": [6.0]}
    assert clock_table({"Pendulum-v1, 8 steps": seconds}).splitlines()[-3:] == [
        "| Pendulum-v1, 8 steps | siirl | 4.0 (3.0, 9.0, 4.0) | 2.00 |",
        "| Pendulum-v1, 8 steps | sb3 | 2.0 (2.0) | 1.00 |",
        "| Pendulum-v1, 8 steps | sb3, processes | 6.0 (6.0) | 3.00 |",
    ]


def test_a_file_for_an_older_gymnasium_runs_and_its_episodes_are_found(tmp_path):
    (tmp_path / "ppo.py").write_text(FILE_FOR_GYMNASIUM_0_29)
    words = ["cleanrl", "--task", "CartPole-v1", "--seed", "1", "--steps", "100"]
    folders = ["--folder", str(tmp_path), "--cleanrl", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.control_contenders", *words, *folders],
        check=True,
        timeout=1500,
    )
    found = json.loads((tmp_path / "episodes.json").read_text())
    assert len(found) >= 8  # one action alone: the pole falls within twelve steps
    assert all(steps % 2 == 0 and 8 <= value <= 12 for steps, value in found)
