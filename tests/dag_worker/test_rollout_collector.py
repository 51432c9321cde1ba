"""From prompts to a batch: episodes of prompts, dropped and counted rows, and the metrics of a
text rollout.
"""

import json

import pytest
from scripted_text import ByteTokenizer, ScriptedEngine

from siirl.dag_worker.rollout_collector import RolloutCollector, mixed_groups, text_rollout_metrics
from siirl.data_coordinator.prompts.dataset import PromptTask
from siirl.data_coordinator.protocol.batch import texts
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.data_coordinator.task_stream import TaskLoader
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import RolloutResult
from siirl.engine.training.collectives import OneProcess
from siirl.env_server.pool import EnvPool
from siirl.errors import TooManyFailures
from siirl.params import SiiRLArguments
from siirl.reporting.metric_reduction import reduce_metrics
from siirl.reporting.metrics import Weighted
from siirl.reporting.rollout_files import ALL, RolloutFiles, read_rollouts


@pytest.fixture
def make(tmp_path):
    """Domains of `script` with four rollouts a prompt; rollouts are written to `tmp_path`."""
    rollouts = []

    def make(script, *, max_prompt_length=40, max_failed_share=0.05, env="math"):
        config = SiiRLArguments()
        config.actor_rollout_ref.rollout.n = 4
        config.env.max_failed_share = max_failed_share
        pool = EnvPool(env, {"tasks": ["sums-1"]}, 1, 8, cluster="local", deadline_s=600)
        workflow = TextWorkflow(
            pool=pool,
            tokenizer=ByteTokenizer(),
            max_prompt_length=max_prompt_length,
            max_response_length=20,
        )
        rollouts.append(Rollout(engine=ScriptedEngine(script), pool=pool, workflow=workflow))
        rollouts[-1].start()
        recorder = RolloutFiles(tmp_path, count=ALL)
        return RolloutCollector(
            policy=config.actor_rollout_ref,
            trainer=config.trainer,
            max_failed_share=config.env.max_failed_share,
            rollout=rollouts[-1],
            recorder=recorder,
            ranks=OneProcess(),
            measure=text_rollout_metrics,
        )

    yield make
    for rollout in rollouts:
        rollout.close()


def asked(number, question, truth="5"):
    row = {
        "data_source": "a/b",
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"style": "whole", "ground_truth": truth},
    }
    return PromptTask(
        task="a_b",
        task_id=0,
        trial_id=number,
        seed=number,
        group_id=number,
        prompt_row=json.dumps(row),
    )


def batch_of(*tasks):
    return Samples2Dict([Sample(task.columns()) for task in tasks])


def half_right(request):
    """Rollouts 0 and 1 of each prompt are right, 2 and 3 wrong."""
    return "5" if request.seed[3] < 2 else "44"


def test_every_prompt_of_a_file_is_rolled_out_n_times_with_its_row(make):
    output = make(half_right).roll_out(batch_of(asked(0, "2+3="), asked(1, "9-4=")), step=7)
    assert output.batch["index"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert output.batch["complete"].tolist() == [True, True, False, False] * 2
    assert texts(output.batch, "uid")[0] == "000007-00000000-000"
    assert "prompt_row" not in output.batch.keys()
    assert (
        output.batch["prompts"].shape
        == output.batch["input_ids"][:, : output.batch["prompts"].shape[1]].shape
    )


def test_without_files_questions_are_generated_from_the_seed(make):
    domain = make(lambda request: "1")
    output = domain.roll_out(
        batch_of(*TaskLoader(tasks=["sums-1"], prompts_per_step=3, seed=0).draw(3)), step=1
    )
    assert len(output.batch) == 12
    prompts = [request.input_ids for request in domain.rollout.engine.requests]
    assert len(set(prompts)) <= 3  # the four rollouts of a prompt get the same question
    assert len({request.seed for request in domain.rollout.engine.requests}) == 12


def test_each_prompt_has_one_greedy_rollout_with_its_own_id(make):
    domain = make(half_right)
    output = domain.roll_out(batch_of(asked(0, "2+3=")), step=7, greedy=True)
    assert texts(output.batch, "uid") == ["000007-00000000-000-greedy"]
    assert [request.greedy for request in domain.rollout.engine.requests] == [True]


class NotingRollout:
    """Records the requested episodes, and runs none."""

    def __init__(self):
        self.asked = []

    def generate(self, requests, *, embed):
        self.asked += requests
        return RolloutResult(), {}


def test_a_refill_records_no_further_episodes(tmp_path):
    config, rollout = SiiRLArguments(), NotingRollout()
    config.trainer.record_episodes, config.actor_rollout_ref.rollout.n = 3, 2
    recorder = RolloutFiles(tmp_path, count=0)
    domain = RolloutCollector(
        policy=config.actor_rollout_ref,
        trainer=config.trainer,
        max_failed_share=config.env.max_failed_share,
        rollout=rollout,
        recorder=recorder,
        ranks=OneProcess(),
        measure=lambda result, stats: {},
    )
    for step, prompts in ((1, (0, 1)), (1, (2, 3)), (1, (4, 5)), (2, (6, 7))):
        domain.roll_out(batch_of(*(asked(number, "2+3=") for number in prompts)), step=step)
    assert [request.group_id for request in rollout.asked if request.record] == [0, 1, 2, 6, 7]


def test_metrics_of_a_text_run_are_declared(make):
    output = make(half_right).roll_out(batch_of(asked(0, "2+3=")), step=1)
    metrics = reduce_metrics([output.metrics])
    assert metrics["rollout/a_b/success_rate"] == 0.5
    assert metrics["rollout/a_b/mixed_groups"] == 1.0
    assert metrics["rollout/reward/correct"] == 0.5
    # "5" and "44", each with the token that ends it
    assert metrics["rollout/avg_response_length"] == 2.5
    assert metrics["rollout/avg_prompt_length"] == 7.0
    assert metrics["rollout/turns"] == 1.0
    assert metrics["rollout/truncated_share"] == 0.0
    assert (
        metrics["rollout/episodes"],
        metrics["env/failed_episodes"],
        metrics["rollout/rejected_episodes"],
    ) == (4.0, 0.0, 0.0)


def test_a_mixed_group_has_a_success_and_a_failure_of_one_prompt_and_a_single_rollout_is_no_group():
    outcomes = [(0, True), (0, False), (1, True), (1, True), (2, False), (2, False)]
    rows = [{"task_name": "sums", "index": i, "complete": done} for i, done in outcomes]
    rows.append({"task_name": "hammer", "index": 3, "complete": True})
    assert mixed_groups(rows) == {"rollout/sums/mixed_groups": Weighted(1 / 3, 3.0)}


def test_a_group_of_failed_samples_is_dropped_and_counted(make):
    domain = make(half_right, max_prompt_length=10, max_failed_share=0.5)
    output = domain.roll_out(
        batch_of(asked(0, "2+3="), asked(1, "a question that is far too long")), step=1
    )
    assert output.batch["index"].tolist() == [0, 0, 0, 0]
    assert output.metrics["env/failed_episodes"] == 4.0


def test_too_many_failed_samples_stop_the_run_with_the_reason(make):
    domain = make(half_right, env="scripted_text:UngradableEnv")
    with pytest.raises(
        TooManyFailures, match=r"the grader was killed.*4 of 4 episodes could not be simulated"
    ):
        domain.roll_out(batch_of(asked(0, "2+3=")), step=1)


def test_rollouts_are_written_with_their_reward_when_it_is_known(make, tmp_path):
    domain = make(half_right)
    domain.roll_out(batch_of(asked(0, "2+3=")), step=2)
    domain.write_recordings({"000002-00000000-000": 0.75})
    rows = list(read_rollouts(tmp_path, step=2))
    assert [row["reward"] for row in rows] == [0.75, None, None, None]
    assert [row["verdict"] for row in rows] == ["correct", "correct", "wrong", "wrong"]
    assert rows[0]["turns"][0]["log_probs"] == [-0.01, -0.02]
