"""Text episodes of several agents: trajectories, turns and rewards of each."""

import dataclasses

from scripted_text import END, MODEL, USER
from text_episodes import play, request


def test_several_agents_give_a_trajectory_each():
    result, engine = play(
        lambda made: "5" if made.seed[2] == 1 else "4", arguments={"num_agents": 2}
    )
    first, second = result.trajectories
    assert [first.row["uid"], second.row["uid"]] == ["u0-a0", "u0-a1"]
    assert [first.row["env_return"], second.row["env_return"]] == [0.0, 1.0]
    assert [first.row["complete"], second.row["complete"]] == [False, True]
    assert first.row["index"] == second.row["index"] == 0
    assert engine.most_running == 2


def play_relay(script, *, env="scripted_text:RelayEnv", **settings):
    """One episode of two agents that take turns."""
    asked = dataclasses.replace(request(0, task="relay"), task="relay")
    return play(script, env=env, requests=[asked], **settings)


def relay(request):
    return {0: "ab", 1: "c"}[request.agent] + str(request.seed[3])


def test_agents_that_take_turns_read_each_other_and_wait():
    result, engine = play_relay(relay, played_by=(3, 5))
    caller, answerer = (trajectory.row for trajectory in result.trajectories)
    assert [request.agent for request in engine.requests] == [0, 1, 0]
    assert engine.most_running == 1
    assert bytes(engine.requests[1].input_ids[1:4]) == b"ab0"
    assert caller["responses"].tolist() == [*b"ab0", END, USER, *b"c0", END, MODEL, *b"ab1", END]
    assert caller["response_mask"].tolist() == [1] * 4 + [0] * 5 + [1] * 4
    assert answerer["responses"].tolist() == [*b"c0", END]
    assert [row["agent"] for row in (caller, answerer)] == [0, 1]
    assert [row["agent_group"] for row in (caller, answerer)] == [3, 5]


def test_a_reward_reaches_an_agent_at_its_last_token_though_another_spoke_last():
    result, _ = play_relay(relay)
    caller, answerer = (trajectory.row for trajectory in result.trajectories)
    assert caller["env_rewards"].tolist() == [0.0] * 12 + [1.0]
    assert answerer["env_rewards"].tolist() == [0.0, 0.0, 2.0]
    assert [row["complete"] for row in (caller, answerer)] == [True, False]


def test_a_reward_before_an_agents_first_action_fails_the_episode():
    result, _ = play_relay(relay, env="scripted_text:EarlyRewardEnv")
    ((_, reason),) = result.failed
    assert "rewards agent 1 with 2.0 before its first action" in str(reason)


def test_an_agent_that_was_never_asked_has_no_trajectory():
    result, _ = play_relay(lambda request: "5" * 200)
    assert [trajectory.row["uid"] for trajectory in result.trajectories] == ["u0-a0"]
