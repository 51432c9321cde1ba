"""Text episodes whose generation is interrupted, as by new weights."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_text import END, MODEL, ByteTokenizer, ScriptedEngine
from text_episodes import play

from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.env_server.pool import EnvPool


def interrupted_script(request):
    """Continues at the request's place: the text of the episode is `12345`."""
    said = bytes(token for token in request.input_ids[7:] if token < 256)
    return "12345"[len(said) :]


def test_interrupted_turn_continues_after_its_tokens_with_their_versions():
    async def interrupt(engine):
        while engine.said < 2:
            await asyncio.sleep(0)
        engine.interrupt()
        engine.update_weights(1)

    result, engine = play(interrupted_script, interrupting=interrupt)
    row, record = result.trajectories[0].row, result.trajectories[0].record
    assert row["responses"].tolist() == [*b"12345", END]
    assert len(engine.requests) == 2
    assert engine.requests[1].input_ids == (*engine.requests[0].input_ids, *b"12")
    assert engine.requests[1].max_new_tokens == 398
    assert engine.requests[1].seed == (9, 0, 0, 0, 1)
    assert row["policy_version"] == 0
    assert [turn["content"] for turn in record["turns"]] == ["12345"]


def talkative_script(request):
    """Continues `say <stop> and more` at any token; this engine looks for no stop strings."""
    said = bytes(token for token in request.input_ids[7:] if token < 256)
    return "say <stop> and more"[len(said) :]


@pytest.mark.parametrize("said", [5, 8, 9])
def test_stop_string_that_an_interruption_splits_ends_the_turn(said):
    async def interrupt(engine):
        while engine.said < said:
            await asyncio.sleep(0)
        engine.interrupt()

    result, engine = play(talkative_script, interrupting=interrupt, stop=("<stop>",))
    (trajectory,) = result.trajectories
    row = trajectory.row
    assert len(engine.requests) == 2
    assert row["responses"].tolist() == [*b"say <stop>"]
    assert [len(row[name]) for name in ("response_mask", "rollout_log_probs", "env_rewards")] == [
        10,
        10,
        10,
    ]
    assert row["rollout_log_probs"].tolist() == pytest.approx(
        [-n / 100 for n in (*range(1, said + 1), *range(1, 11 - said))]
    )
    assert trajectory.record["finish_reason"] == "stop"
    assert [turn["content"] for turn in trajectory.record["turns"]] == ["say <stop>"]
    assert not row["truncated"]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    says=st.lists(st.text(alphabet="ab", max_size=12), min_size=3, max_size=3),
    budget=st.integers(1, 60),
    interruptions=st.sets(st.integers(1, 30), max_size=4),
)
def test_a_row_holds_exactly_the_generated_tokens_under_random_interruptions(
    says, budget, interruptions
):
    """Three turns with any texts, under any budget, interrupted anywhere: no token is lost, made
    anew, or trained on twice.
    """

    def script(made):
        turn, so_far = made.seed[3], made.input_ids[len(first_prompt) :]
        begun = [token for token in so_far[last_opening(so_far) :] if token < 256]
        return says[turn][len(begun) :]

    first_prompt = ByteTokenizer().encode_prompt([{"role": "user", "content": "Say 0."}])
    engine = ScriptedEngine(script, pause=1)

    async def episode():
        async with EnvPool(
            "scripted_text:ThreeTurnsEnv", {}, 1, 1, cluster="local", deadline_s=600
        ) as pool:
            workflow = TextWorkflow(
                pool=pool,
                tokenizer=ByteTokenizer(),
                max_prompt_length=50,
                max_response_length=budget,
            )
            data = EpisodeRequest(
                uid="u", group_id=0, task="more", task_id=0, trial_id=0, seed=0, policy_seed=(1, 2)
            )
            running = asyncio.ensure_future(workflow.arun_episode(engine, data))
            for said in sorted(interruptions):
                while engine.said < said and not running.done():
                    await asyncio.sleep(0)
                engine.interrupt()
            return await running

    (trajectory,) = asyncio.run(episode())
    row = trajectory.row
    own = row["responses"][row["response_mask"] == 1]
    assert len(row["responses"]) <= budget
    assert row["response_mask"][-1] == 1
    assert len(own) == engine.said
    spoken = "".join(
        turn["content"] for turn in trajectory.record["turns"] if turn["role"] == "assistant"
    )
    assert bytes(token for token in own.tolist() if token < 256).decode() == spoken
    assert "".join(says).startswith(spoken)
    for made in engine.requests:
        assert made.input_ids == tuple(row["input_ids"][: len(made.input_ids)])
        assert len(made.input_ids) - len(first_prompt) + made.max_new_tokens == budget
    assert (row["rollout_log_probs"][row["response_mask"] == 0] == 0).all()
    assert row["env_rewards"].sum() == row["env_return"] == row["finish_step"]
    assert (row["response_mask"][row["env_rewards"] != 0] == 1).all()
    assert row["truncated"] == (row["finish_step"] < 3 or own[-1] != END)


def last_opening(tokens):
    """Position behind the last MODEL among `tokens`, or 0."""
    return max((place + 1 for place, token in enumerate(tokens) if token == MODEL), default=0)
