"""The environment: contract, options, verdict and failures; in servers and the pool, like
simulators.
"""

import asyncio
import json

import pytest
from trials import SMALL, problem

from envs.base import EpisodeFailed
from envs.checker import check_env
from envs.registry import make_env
from envs.sandbox.generator import GeneratedTask, draw_row
from envs.sandbox.limits import SandboxFailed
from siirl.env_server.pool import EnvPool

LIMITS = {"cpu_s": 1, "memory_bytes": SMALL.memory_bytes, "processes": 8}


def play(env, text, **options):
    async def episode():
        observation, first = await env.reset(seed=3, options=options)
        return observation, first, await env.step(text)

    return asyncio.run(episode())


@pytest.fixture
def env(small):
    return make_env("sandbox", limits=LIMITS)


def test_environment_keeps_the_contract(env):
    check_env(env)


def test_right_program_has_reward_1(env):
    row = problem(inputs=[[1], [2]], outputs=[8, 9], function="f").row.as_columns()
    observation, first, (last, reward, terminated, truncated, info) = play(
        env, "```python\nf = lambda v: v + 7\n```", row=row
    )
    assert observation == {"messages": [{"role": "user", "content": "?"}]}
    assert (first["task"], first["num_tests"]) == ("test", 2)
    assert (last, reward, terminated, truncated) == ({"messages": []}, 1.0, True, False)
    assert (info["success"], info["reward_parts"], info["verdict"]) == (
        True,
        {"tests": 1.0},
        "passed all 2 tests",
    )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("I do not know.", "test 1 of 10: exit status 1: SyntaxError: invalid syntax"),
        ("", "no program"),
        ("```python\n```", "no program"),
        ("solve = lambda v: 0", "test 1 of 10: wrong answer"),
        (
            "print(5)",
            "test 1 of 10: exit status 1: AttributeError: module '__main__' has no attribute "
            "'solve'",
        ),
    ],
)
@pytest.mark.parametrize("reward", ["all", "share"])
def test_anything_else_has_reward_0_and_a_verdict(small, text, verdict, reward):
    env = make_env("sandbox", tasks=["numbers-2"], reward=reward, limits=LIMITS)
    *_, (_, value, terminated, _, info) = play(env, text)
    assert (value, terminated, info["success"], info["verdict"]) == (0.0, True, False, verdict)


@pytest.mark.parametrize("reward", ["all", "share"])
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_best_constant_scores_0_on_the_default_tasks(small, split, reward):
    """The most frequent hidden answer, which no policy can know, given to every test."""
    env = make_env("sandbox", wording="bare", reward=reward, limits=LIMITS)

    async def score(task):
        row = draw_row(
            GeneratedTask.of(task),
            split=split,
            heldout_share=0.1,
            num_tests=10,
            wording="bare",
            seed=5,
        )
        expected = json.loads(row.ground_truth)["outputs"]
        best = max(expected, key=expected.count)
        observation, _ = await env.reset(seed=5, options={"task": task, "split": split})
        assert observation["messages"] == list(row.prompt)
        _, value, _, _, info = await env.step(
            f"print({best!r})" if task.startswith("lines") else f"solve=lambda v:{best!r}"
        )
        return value, info["success"], info["verdict"].startswith("test ")

    assert [asyncio.run(score(task)) for task in env.spec.tasks] == [(0.0, False, True)] * 4


def test_share_rewards_part_of_the_tests(small):
    env = make_env("sandbox", tasks=["numbers-2"], reward="share", limits=LIMITS)
    row = problem(inputs=[[1], [2], [3], [4]], outputs=[1, 2, 3, 0], function="f").row.as_columns()
    *_, (_, reward, _, _, info) = play(env, "f = lambda v: v", row=row)
    assert (reward, info["tests_passed"], info["verdict"]) == (
        pytest.approx(2 / 3),
        3,
        "test 4 of 4: wrong answer",
    )


def test_seed_and_split_choose_the_problem(env):
    async def prompts():
        cases = ((1, "train"), (1, "train"), (2, "train"), (1, "heldout"))
        return [
            (await env.reset(seed=seed, options={"split": split}))[0]["messages"][0]["content"]
            for seed, split in cases
        ]

    first, again, second, heldout = asyncio.run(prompts())
    assert first == again
    assert len({first, second, heldout}) == 3


def test_failing_sandbox_gives_no_reward(env, monkeypatch):
    def fail(job):
        raise SandboxFailed("no memory for another process")

    monkeypatch.setattr(env._sandbox, "run", fail)
    with pytest.raises(EpisodeFailed, match="no memory for another process"):
        play(env, "solve = lambda v: v")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"isolation": "docker"}, "Unknown isolation 'docker'. Known: bubblewrap, remote, none"),
        ({"isolation": "remote"}, "url is the address for env.isolation=remote"),
        ({"url": "http://sandbox"}, "url is the address for env.isolation=remote"),
        ({"isolation": "none", "packages": ["numpy"]}, "packages needs env.isolation=bubblewrap"),
        ({"reward": "most"}, "Unknown reward 'most'"),
        ({"wording": "long"}, "Unknown wording"),
        ({"split": "test"}, "Unknown split 'test'. Known: train, heldout"),
        ({"tasks": ["list-2"]}, "Unknown sandbox task 'list-2'. Did you mean 'lists-n'"),
        ({"num_tests": 1}, "num_tests must be at least 4"),
        ({"heldout_share": 1.0}, "below 1, got 1.0"),
        ({"limits": {"ram": 1}}, "Unknown limit 'ram'"),
    ],
)
def test_invalid_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_env("sandbox", **arguments)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"split": "validation"}, "Unknown split"),
        ({"index": 1}, "Unknown reset option 'index'"),
        ({"row": {"prompt": "?"}}, "data_source"),
        (
            {
                "row": problem(inputs=["1", "2"], outputs=["1", "2"]).row.as_columns()
                | {"reward_model": {"ground_truth": "5"}}
            },
            "JSON object",
        ),
    ],
)
def test_invalid_options_are_refused(env, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        asyncio.run(env.reset(seed=0, options=options))


def test_pool_plays_episodes_side_by_side(small):
    async def play_all():
        pool = EnvPool("sandbox", {"limits": LIMITS}, 1, 4, cluster="local", deadline_s=600.0)
        await pool.start()
        try:
            return await asyncio.gather(*(play_one(pool, seed) for seed in range(8)))
        finally:
            await pool.close()

    async def play_one(pool, seed):
        row = problem(
            inputs=[[1], [2]], outputs=[1 + seed, 2 + seed], function="f"
        ).row.as_columns()
        async with pool.slot() as slot:
            await slot.reset(seed=seed, options={"row": row})
            *_, terminated, _, info = await slot.step_chunk(
                [f"f = lambda v: v + {seed if seed % 2 else 100}"]
            )
            return terminated, info["success"]

    assert asyncio.run(play_all()) == [(True, seed % 2 == 1) for seed in range(8)]
