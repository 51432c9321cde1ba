"""Text episodes, followed token by token: trained tokens, masked tokens, and budgets
that end an episode.
"""

import re

import numpy as np
import pytest
from scripted_text import END, MODEL, TOOL, USER, ByteTokenizer
from text_episodes import ROW, play, request

from envs.tools.calls import ToolCall, write_call
from envs.worker_pool import WorkerSettings, lease, release
from siirl.engine.rollout.text_workflow import (
    TextWorkflow,
    check_own_workflow,
    make_text_workflow,
)
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow
from siirl.errors import ConfigError, SimulationFailed, UnknownNameError

CALL = write_call(ToolCall("calculator", {"expression": "2+3"}))


TOOL_ARGUMENTS = {"announce": False, "tool_deadline_s": 600.0}


@pytest.fixture(scope="module", autouse=True)
def workers_that_outlive_one_environment():
    """A lease on the workers of tools: else each test would start and end its own."""
    pool = lease(
        WorkerSettings(target="envs.tools.signatures:call_function", num_workers=2, deadline_s=600)
    )
    yield
    release(pool)


def test_single_turn_is_prompt_and_response_with_everything_trained():
    result, engine = play(lambda request: "5")
    (trajectory,) = result.trajectories
    row = trajectory.row
    prompt, response = [USER, *b"2+3=", END, MODEL], [*b"5", END]
    assert engine.requests[0].input_ids == tuple(prompt)
    assert row["prompts"].tolist() == prompt
    assert row["responses"].tolist() == response
    assert row["response_mask"].tolist() == [1, 1]
    assert row["input_ids"].tolist() == prompt + response
    assert row["attention_mask"].tolist() == [1] * 9
    assert row["position_ids"].tolist() == list(range(9))
    np.testing.assert_allclose(row["rollout_log_probs"], [-0.01, -0.02])
    assert (row["complete"], row["truncated"], row["env_return"], row["finish_step"]) == (
        True,
        False,
        1.0,
        1,
    )
    assert (row["uid"], row["index"], row["task_name"], row["trial_id"], row["seed"]) == (
        "u0",
        0,
        "mine",
        3,
        0,
    )


def test_record_describes_the_episode():
    record = play(lambda request: "6")[0].trajectories[0].record
    assert record["prompt"] == ROW["prompt"]
    assert record["turns"] == [
        {"role": "assistant", "content": "6", "tokens": [*b"6", END], "log_probs": [-0.01, -0.02]}
    ]
    assert (record["verdict"], record["reward_parts"], record["ground_truth"]) == (
        "wrong",
        {"correct": 0.0},
        "5",
    )


def test_text_columns_are_added_only_on_request():
    row = (
        play(lambda request: "6", text_columns=("response_text", "ground_truth", "extra_info"))[0]
        .trajectories[0]
        .row
    )
    assert (row["response_text"], row["ground_truth"], row["extra_info"]) == (
        "6",
        '"5"',
        '{"page": 7}',
    )
    assert "data_source" not in row


def test_generated_question_has_its_ground_truth_and_its_split():
    result, _ = play(
        lambda request: "1", arguments={"tasks": ["sums-1"]}, requests=[sums_request()]
    )
    trajectory = result.trajectories[0]
    first, second = map(int, re.findall(r"\d+", trajectory.instruction))
    assert trajectory.record["ground_truth"] == str(first + second)


def sums_request():
    return EpisodeRequest(
        uid="g",
        group_id=0,
        task="sums-1",
        task_id=0,
        trial_id=0,
        seed=1,
        policy_seed=(0,),
        options={"split": "heldout"},
    )


def tool_script(request):
    return "5" if TOOL in request.input_ids else CALL


def test_tokens_of_a_tool_are_masked_and_those_of_the_model_are_never_tokenized_again():
    result, engine = play(tool_script, env="tools", arguments=TOOL_ARGUMENTS)
    row = result.trajectories[0].row
    call, answer, final = [*CALL.encode(), END], [TOOL, *b"5", END, MODEL], [*b"5", END]
    assert row["responses"].tolist() == call + answer + final
    assert row["response_mask"].tolist() == [1] * len(call) + [0] * len(answer) + [1] * len(final)
    assert row["rollout_log_probs"][len(call) : len(call) + len(answer)].tolist() == [0.0] * len(
        answer
    )
    assert engine.requests[1].input_ids == (*engine.requests[0].input_ids, *call, *answer)
    assert (row["finish_step"], row["complete"], row["truncated"]) == (2, True, False)


def test_each_turn_has_its_own_generator():
    _, engine = play(tool_script, env="tools", arguments=TOOL_ARGUMENTS)
    assert [made.seed for made in engine.requests] == [(9, 0, 0, 0, 0), (9, 0, 0, 1, 0)]


def test_turns_of_the_environment_stand_in_the_record():
    turns = (
        play(tool_script, env="tools", arguments=TOOL_ARGUMENTS)[0].trajectories[0].record["turns"]
    )
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("assistant", CALL),
        ("tool", "5"),
        ("assistant", "5"),
    ]


def test_spent_budget_truncates_and_the_last_text_is_still_graded():
    result, _ = play(lambda request: "5 or rather 6", max_response_length=1)
    row = result.trajectories[0].row
    assert row["responses"].tolist() == [*b"5"]
    assert (row["complete"], row["truncated"], row["env_return"]) == (True, True, 1.0)


def test_answer_of_a_tool_that_spends_the_budget_ends_the_episode_with_the_reward_so_far():
    # the call with its END, and the tool's four tokens: none is left to answer with
    budget = len(CALL) + 1 + 4
    result, _ = play(tool_script, env="tools", arguments=TOOL_ARGUMENTS, max_response_length=budget)
    row = result.trajectories[0].row
    assert row["responses"].tolist() == [*CALL.encode(), END]
    assert (row["complete"], row["truncated"], row["env_return"], row["finish_step"]) == (
        False,
        True,
        0.0,
        1,
    )
    result, _ = play(
        tool_script, env="tools", arguments=TOOL_ARGUMENTS, max_response_length=budget + 1
    )
    assert result.trajectories[0].row["responses"][-1] == ord("5")


def test_the_bound_on_turns_is_that_of_the_environment():
    result, engine = play(
        lambda request: CALL, env="tools", arguments=TOOL_ARGUMENTS | {"max_turns": 2}
    )
    trajectory = result.trajectories[0]
    assert (len(engine.requests), trajectory.row["truncated"], trajectory.record["verdict"]) == (
        2,
        True,
        "out of turns",
    )


def test_text_longer_than_the_environment_takes_gets_no_reward():
    trajectory = play(lambda request: "5     ", arguments={"max_action_characters": 5})[
        0
    ].trajectories[0]
    assert (
        trajectory.row["env_return"],
        trajectory.row["complete"],
        trajectory.row["truncated"],
    ) == (0.0, False, True)
    assert (
        trajectory.record["verdict"] == "a text has more than 5 characters, the environment's limit"
    )


def test_prompt_too_long_is_a_failed_episode_that_says_so():
    result, engine = play(lambda request: "5", max_prompt_length=6)
    assert not result.trajectories
    assert not engine.requests
    ((_, reason),) = result.failed
    assert str(reason).endswith(
        "has 7 tokens, more than data.max_prompt_length=6. Raise it, or leave such prompts out."
    )


def test_an_environments_own_prompt_that_is_too_long_names_the_keys_that_help():
    asked = [request(task="sums-2")]
    result, _ = play(lambda request: "5", requests=asked, max_prompt_length=6)
    ((_, reason),) = result.failed
    assert str(reason).endswith(
        "more than data.max_prompt_length=6. Raise it to 64 or more, or shorten in env.kwargs what "
        "the environment asks and which tools it announces."
    )


def test_prompt_too_long_may_be_cut_to_its_last_tokens():
    _, engine = play(lambda request: "5", max_prompt_length=4, cut_prompts=True)
    assert engine.requests[0].input_ids == (*b"3=", END, MODEL)


def test_prompt_of_exactly_the_longest_length_is_asked():
    assert len(play(lambda request: "5", max_prompt_length=7)[0].trajectories) == 1


def test_answer_that_cannot_be_graded_is_a_failed_episode():
    result, _ = play(lambda request: "5", env="scripted_text:UngradableEnv")
    assert not result.trajectories
    ((_, reason),) = result.failed
    assert isinstance(reason, SimulationFailed)
    assert "the grader was killed" in str(reason)


def test_reward_of_each_turn_is_at_its_last_token():
    """Turns `ab`, `c` and `def` with their END, each with reward 1; the environment says `More?`
    with a mark before and two behind.
    """
    says = ("ab", "c", "def")
    row = (
        play(
            lambda made: says[made.seed[3]],
            env="scripted_text:ThreeTurnsEnv",
            requests=[more_request()],
        )[0]
        .trajectories[0]
        .row
    )
    heard = 1 + len("More?") + 2
    expected = [0, 0, 1, *[0] * heard, 0, 1, *[0] * heard, 0, 0, 0, 1]
    assert row["env_rewards"].tolist() == expected
    assert (row["env_rewards"].dtype, row["env_return"]) == (np.float32, 3.0)
    assert row["response_mask"][row["env_rewards"] != 0].tolist() == [1, 1, 1]


def more_request():
    return EpisodeRequest(
        uid="m", group_id=0, task="more", task_id=0, trial_id=0, seed=0, policy_seed=(9, 0)
    )


def test_engine_gets_the_texts_that_end_a_turn():
    _, engine = play(lambda request: "5", stop=("</answer>",))
    assert engine.requests[0].stop == ("</answer>",)


@pytest.mark.parametrize("settings", [{"max_prompt_length": 0}, {"max_response_length": 0}])
def test_an_impossible_length_is_refused(settings):
    with pytest.raises(ConfigError, match=f"data.{next(iter(settings))}=0 must be at least 1"):
        play(lambda request: "5", **settings)


def test_unknown_text_column_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'extra_info'"):
        play(lambda request: "5", text_columns=("extra_inf",))


class BestOfTwo(TextWorkflow):
    """A user's workflow: two episodes; the better one is kept."""

    async def arun_episode(self, engine, data):
        first, second = (
            await super().arun_episode(engine, data),
            await super().arun_episode(engine, data),
        )
        return max(first, second, key=lambda episode: episode[0].row["env_return"])


def arguments_of(pool=None):
    return {
        "pool": pool,
        "tokenizer": ByteTokenizer(),
        "max_prompt_length": 50,
        "max_response_length": 50,
    }


def test_users_workflow_is_made_with_the_same_arguments():
    workflow = make_text_workflow(f"{__name__}:BestOfTwo", **arguments_of())
    assert isinstance(workflow, RolloutWorkflow)
    assert type(workflow).__name__ == "BestOfTwo"
    assert isinstance(make_text_workflow(None, **arguments_of()), TextWorkflow)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:X", "there is no module 'no_such_module'"),
        (
            "builtins:dict",
            r"made a dict; it must be a siirl\.engine\.rollout\.workflow\.RolloutWorkflow",
        ),
        ("scripted_text:UngradableEnv", r"is called with \(pool=…, tokenizer=…"),
    ],
)
def test_an_object_that_is_not_a_workflow_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        make_text_workflow(name, **arguments_of())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("json:dumps", r"is called with \(pool=…, tokenizer=….* does not take"),
        ("collections:Counter", "is another class; it must be a siirl"),
        ("os:sep", "is of type str and cannot be called"),
    ],
)
def test_an_object_that_is_not_a_workflow_is_refused_before_the_start(name, words):
    check_own_workflow(f"{__name__}:BestOfTwo", has_roles=False)
    with pytest.raises(ConfigError, match=f"rollout.workflow={name} {words}"):
        check_own_workflow(name, has_roles=True)
