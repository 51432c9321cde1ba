"""Evaluation: its requests and its counts, on text, whose answers can be written down."""

import itertools
import json
import weakref

import numpy as np
import pytest
from scripted_text import ByteTokenizer, ScriptedEngine

from envs.base import RECORDER_STREAM, Frames
from siirl.dag_worker.validator import (
    Outcome,
    Validator,
    evaluation_metrics,
    pass_at_k_metrics,
    score_metrics,
)
from siirl.data_coordinator.prompts.dataset import PromptTask
from siirl.data_coordinator.task_stream import EpisodeTask
from siirl.engine.reward_manager import EpisodeOutcomes, Memoryless, RewardScores
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import RolloutWorkflow, Trajectory
from siirl.engine.training.collectives import OneProcess
from siirl.env_server.pool import EnvPool
from siirl.errors import TooManyFailures
from siirl.reporting.statistics import pass_at_k


class Kept:
    """A recorder that records its calls."""

    def __init__(self):
        self.trajectories = []

    def keep(self, trajectories, *, kind, step):
        self.trajectories += [(kind, step, trajectory) for trajectory in trajectories]

    def write(self, rewards):
        self.rewards = dict(rewards)


class Length(Memoryless):
    """A reward that counts the tokens of the answer, and cannot score the prompt `fails_on`."""

    ranks_failures, looks_at_all_ranks = True, False

    def __init__(self, fails_on=None):
        self.fails_on, self.asked = fails_on, []

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        self.asked += outcomes.index_B.tolist()
        failed = {
            row: "no judge" for row, index in enumerate(outcomes.index_B) if index == self.fails_on
        }
        return RewardScores(outcomes.response_length_B.astype(np.float32), failed=failed)


@pytest.fixture
def make():
    """Validators of `script` over one-digit sums, closed in the end."""
    rollouts = []

    def make(script, *, max_prompt_length=50, env=None, **settings):
        pool = EnvPool(
            "math", {"tasks": ["sums-1"]} | (env or {}), 1, 4, cluster="local", deadline_s=600
        )
        workflow = TextWorkflow(
            pool=pool,
            tokenizer=ByteTokenizer(),
            max_prompt_length=max_prompt_length,
            max_response_length=50,
        )
        rollouts.append(Rollout(engine=ScriptedEngine(script), pool=pool, workflow=workflow))
        rollouts[-1].start()
        common = {
            "tasks": ["sums-1"],
            "episodes": 5,
            "first_seed": 0,
            "record": 0,
            "max_failed_share": 0.05,
        }
        return Validator(
            rollout=rollouts[-1], ranks=OneProcess(), recorder=Kept(), **common | settings
        )

    yield make
    for rollout in rollouts:
        rollout.close()


def question(request):
    return bytes(token for token in request.input_ids if token < 256).decode()


def right(request):
    first, second = question(request).rstrip("=").split("+")
    return str(int(first) + int(second))


def test_accuracy_has_its_counts_and_every_generation_is_recorded(make):
    validator = make(right, options={"split": "heldout"})
    metrics = validator.evaluate(step=3)
    assert metrics["val/sums-1/success_rate"] == (1.0, 5.0)
    assert (metrics["val/all/successes"], metrics["val/all/episodes"]) == (5.0, 5.0)
    assert {(kind, step) for kind, step, _ in validator.recorder.trajectories} == {("val", 3)}
    assert len(validator.recorder.trajectories) == 5
    assert validator.recorder.trajectories[0][2].row["uid"] == "val-000003-sampled-000000"


def test_held_out_questions_are_fixed_and_never_trained_on(make):
    heldout, training = (
        make(right, options={"split": "heldout"}),
        make(right, options={"split": "train"}),
    )
    for validator in (heldout, heldout, training):
        validator.evaluate(step=0)
    first, second = (
        [question(r) for r in heldout.rollout.engine.requests[part]]
        for part in (slice(0, 5), slice(5, 10))
    )
    assert sorted(first) == sorted(second)
    assert not set(first) & {question(r) for r in training.rollout.engine.requests}


def test_greedy_samples_are_requested_once_per_prompt_and_counted_separately(make):
    validator = make(right, samples=3)
    metrics = validator.evaluate(step=0, greedy=True)
    assert [request.greedy for request in validator.rollout.engine.requests] == [True] * 5
    assert (metrics["val/all/argmax_successes"], metrics["val/all/argmax_episodes"]) == (5.0, 5.0)
    assert not [name for name in metrics if "pass_at" in name]


@pytest.mark.parametrize("greedy", [True, False])
def test_sampled_and_greedy_episodes_can_each_be_recorded(make, greedy):
    validator, asked = make(right, record=2), []
    validator.evaluate(step=0, greedy=greedy, on_done=asked.append)
    assert sorted(request.group_id for request in asked if request.record) == [0, 1]
    asked.clear()
    validator.evaluate(step=0, greedy=greedy, record=False, on_done=asked.append)
    assert (len(asked), any(request.record for request in asked)) == (5, False)


def test_samples_of_a_prompt_are_drawn_independently_and_give_pass_at_k(make):
    """One of four answers to each prompt is right: by hand, a set of two holds it with chance 1/2."""
    validator = make(lambda request: right(request) if request.seed[2] == 1 else "-1", samples=4)
    metrics = validator.evaluate(step=0)
    requests = validator.rollout.engine.requests
    assert (
        len({request.seed for request in requests})
        == len({request.uid for request in requests})
        == 20
    )
    assert metrics["val/all/success_rate"] == (0.25, 20.0)
    assert metrics["val/sums-1/pass_at_2"] == (pytest.approx(0.5), 5.0)
    assert metrics["val/sums-1/pass_at_4"] == (1.0, 5.0)
    assert (metrics["val/all/any_successes"], metrics["val/all/any_episodes"]) == (5.0, 5.0)


class Filmed(RolloutWorkflow):
    """Episodes with a picture in their row and one for a video; `most` is how many of each there
    were when one began.
    """

    def __init__(self, pool):
        self.pool, self.pictures, self.frames, self.most = pool, [], [], (0, 0)

    async def arun_episode(self, engine, data):
        async with self.pool.slot() as slot:
            await slot.reset(seed=data.seed, options={"task": data.task})
            there = [
                sum(array() is not None for array in arrays)
                for arrays in (self.pictures, self.frames)
            ]
            self.most = tuple(map(max, zip(self.most, there, strict=True)))
            picture, frame = np.zeros((1, 8, 8, 3), np.uint8), np.zeros((1, 8, 8, 3), np.uint8)
            self.pictures.append(weakref.ref(picture))
            self.frames.append(weakref.ref(frame))
            row = {
                "uid": data.uid,
                "index": data.group_id,
                "task_name": data.task,
                "complete": True,
                "env_return": 1.0,
            }
            film = {RECORDER_STREAM: Frames(frame, (0,))} if data.record else {}
        return Trajectory(row=row | {"pixel_values": picture}, frames=film)


class Shown(Kept):
    """A recorder that releases episodes on request, and records the requested videos."""

    def __init__(self):
        super().__init__()
        self.uids = []

    def write(self, rewards):
        self.uids += [
            trajectory.row["uid"] for _, _, trajectory in self.trajectories if trajectory.frames
        ]
        self.trajectories = []


def test_pictures_of_finished_episodes_are_freed_and_each_video_is_made_once(make):
    """Twenty episodes on four environments, the first twelve with a video."""
    validator = make(right, episodes=20, record=12)
    validator.rollout.workflow, validator.recorder = Filmed(validator.rollout.pool), Shown()
    assert validator.evaluate(step=0)["val/all/successes"] == 20.0
    assert max(validator.rollout.workflow.most) <= 4
    assert sorted(validator.recorder.uids) == [
        f"val-000000-sampled-{number:06d}" for number in range(12)
    ]


def test_prompts_of_files_are_evaluated_with_their_row(make):
    row = {
        "data_source": "a/b",
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"style": "whole", "ground_truth": "2"},
    }
    prompts = [
        PromptTask(
            task="a_b", task_id=0, trial_id=9, seed=0, group_id=0, prompt_row=json.dumps(row)
        )
    ]
    metrics = make(right, prompts=prompts).evaluate(step=0)
    assert metrics["val/a_b/success_rate"] == (1.0, 1.0)


def test_too_many_failed_episodes_stop_the_run(make):
    with pytest.raises(
        TooManyFailures, match=r" more than data\.max_prompt_length=3.* 5 of 5 episodes"
    ):
        make(right, max_prompt_length=3).evaluate(step=0)


def test_a_rank_without_prompts_has_no_evaluation_outcomes(make):
    metrics = make(right, prompts=list[EpisodeTask]()).evaluate(step=0)
    assert metrics == {"env/failed_episodes": 0.0}


JUDGED = {"data_source": "judged", "reward_model": {"style": "model", "ground_truth": None}}
GRADED = {"data_source": "sums", "reward_model": {"style": "whole", "ground_truth": "2"}}


def prompts_of(*rows):
    """A prompt of a file for each row: what is 1+1?"""
    asked = [row | {"prompt": [{"role": "user", "content": "1+1="}]} for row in rows]
    return [
        PromptTask(
            task=row["data_source"],
            task_id=0,
            trial_id=i,
            seed=i,
            group_id=i,
            prompt_row=json.dumps(row),
        )
        for i, row in enumerate(asked)
    ]


def by_number(request):
    """`2` to the first prompt, `22` to the second, and so on; each ends with a stop token."""
    return "2" * (request.seed[1] + 1)


def test_rows_without_a_grade_alone_are_rated_by_the_reward_and_have_no_success(make):
    """Answers of 2, 3 and 4 tokens, the last to a row that is graded (`222` is not 2)."""
    reward = Length()
    validator = make(
        by_number, prompts=prompts_of(JUDGED, JUDGED, GRADED), env={"ungraded": True}, reward=reward
    )
    metrics = validator.evaluate(step=0)
    assert sorted(reward.asked) == [0, 1]
    assert (metrics["val/judged/mean_score"], metrics["val/all/mean_score"]) == (2.5, 2.5)
    assert (metrics["val/all/score_std"], metrics["val/all/scored_episodes"]) == (
        pytest.approx(0.5**0.5),
        2.0,
    )
    assert (metrics["val/judged/ungraded_episodes"], metrics["val/all/episodes"]) == (2.0, 1.0)
    assert "val/judged/success_rate" not in metrics
    assert "val/sums/scored_episodes" not in metrics
    assert sorted(validator.recorder.rewards.values()) == [2.0, 3.0]


def test_the_reward_is_not_called_if_every_held_out_row_has_a_grade(make):
    reward = Length()
    metrics = make(
        by_number, prompts=prompts_of(GRADED), env={"ungraded": True}, reward=reward
    ).evaluate(step=0)
    assert (reward.asked, metrics["val/all/episodes"]) == ([], 1.0)
    assert not [name for name in metrics if "score" in name]


def test_an_episode_without_a_score_is_counted_and_left_out_of_means(make):
    asked = {
        "prompts": prompts_of(JUDGED, JUDGED),
        "env": {"ungraded": True},
        "reward": Length(fails_on=1),
    }
    metrics = make(by_number, **asked, max_unscored_share=0.5).evaluate(step=0, greedy=True)
    assert (
        metrics["val/judged/argmax_mean_score"],
        metrics["val/judged/argmax_scored_episodes"],
    ) == (2.0, 1.0)
    assert metrics["val/judged/argmax_unscored_episodes"] == 1.0
    with pytest.raises(
        TooManyFailures,
        match=r"1 of 2 samples could not be scored; .*reward\.max_failed_share=0\.4.* no judge",
    ):
        make(by_number, **asked, max_unscored_share=0.4).evaluate(step=0)


def test_a_rank_without_rows_has_no_scores(make):
    metrics = make(
        right, prompts=list[EpisodeTask](), env={"ungraded": True}, reward=Length()
    ).evaluate(step=0)
    assert metrics == {"env/failed_episodes": 0.0}


def test_without_scored_episodes_there_is_no_mean():
    assert score_metrics([("a/b", None)], greedy=False) == {
        **{"val/a_b/scored_episodes": 0.0, "val/a_b/unscored_episodes": 1.0},
        **{"val/all/scored_episodes": 0.0, "val/all/unscored_episodes": 1.0},
    }


def outcomes(**successes):
    """`prompt="1001"`: four episodes, the first and the last of which succeeded; the letter of the
    prompt is its task.
    """
    return [
        Outcome(prompt=number, task=name[0], success=flag == "1", env_return=float(flag))
        for number, (name, flags) in enumerate(successes.items())
        for flag in flags
    ]


def test_sources_are_counted_separately():
    metrics = evaluation_metrics(
        outcomes(a1="10", a2="0", b1="1"), greedy=False, reports_success=True
    )
    assert metrics["val/a/success_rate"] == (pytest.approx(1 / 3), 3.0)
    assert metrics["val/b/success_rate"] == (1.0, 1.0)
    assert metrics["val/all/success_rate"] == (0.5, 4.0)


def test_pass_at_k_is_a_mean_over_prompts_and_leaves_out_those_with_too_few_samples():
    metrics = pass_at_k_metrics(outcomes(a1="1000", a2="0000", a3="11"), samples=4)
    assert metrics["val/a/pass_at_2"] == (pytest.approx((0.5 + 0.0 + 1.0) / 3), 3.0)
    assert metrics["val/a/pass_at_4"] == (0.5, 2.0)
    assert (metrics["val/a/any_successes"], metrics["val/a/any_episodes"]) == (1.0, 2.0)


def test_a_slash_in_a_source_name_does_not_split_the_metric_name():
    found = [Outcome(prompt=0, task="openai/gsm8k", success=True, env_return=1.0)]
    assert "val/openai_gsm8k/success_rate" in evaluation_metrics(
        found, greedy=False, reports_success=True
    )


@pytest.mark.parametrize(
    ("samples", "successes", "k"), [(6, 0, 3), (6, 2, 3), (6, 6, 3), (5, 1, 1), (4, 2, 4)]
)
def test_pass_at_k_is_the_share_of_all_sets_with_a_right_answer(samples, successes, k):
    answers = [1] * successes + [0] * (samples - successes)
    sets = list(itertools.combinations(answers, k))
    assert pass_at_k(samples=samples, successes=successes, k=k) == pytest.approx(
        sum(map(any, sets)) / len(sets)
    )


@pytest.mark.parametrize(("samples", "successes", "k"), [(4, 5, 1), (4, 1, 5), (4, 1, 0)])
def test_impossible_counts_are_refused(samples, successes, k):
    with pytest.raises(ValueError, match="is undefined"):
        pass_at_k(samples=samples, successes=successes, k=k)
