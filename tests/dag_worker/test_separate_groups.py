"""Rollouts on a separate rank: lockstep equals colocated ranks, older weights are bounded and
counted, and a resumed run continues the rollouts that were under way.
"""

import importlib.util
import threading
import time
from collections import Counter

import pytest
import torch

from siirl.dag_worker import accounting, stages
from siirl.dag_worker.manifest import STATE_FILE, resolve_checkpoint
from siirl.dag_worker.plain_state import read_state
from siirl.dag_worker.separate import prompt_runner, training_side
from siirl.dag_worker.separate.sent_weights import WeightSender
from siirl.data_coordinator.protocol.batch import select_rows, texts
from siirl.errors import ConfigError, InvariantError
from siirl.reporting.stage_times import stage_of
from tests.dag_worker.one_process import run, untimed
from tests.dag_worker.two_groups import TwoGroups, run_groups

COMMON = (
    "trainer.max_minutes=null", "trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.threads_per_rank=1",
    "actor_rollout_ref.actor.ppo_epochs=1", "env.num_servers=1",
)  # fmt: skip
SUMS = (
    "env=math", "env.tasks=[sums-1,sums-2]", "pipeline=grpo", "data.train_batch_size=8", "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "env.envs_per_server=32",
    "trainer.val_episodes=2", *COMMON,
)  # fmt: skip
CARTPOLE = (
    "env=gymnasium", "env.id=CartPole-v1", "pipeline=grpo", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr=1e-2", "env.envs_per_server=6",
    "trainer.val_episodes=2", "trainer.record_episodes=0", "trainer.record_val_episodes=0",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 16}", *COMMON,
)  # fmt: skip
PAIR = ("trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")
THREE = ("trainer.n_gpus_per_node=3", "dag.groups={rollout: 2, train: 1}")
FIXED = "trainer.deterministic=true"
LEARNT = (
    "actor/",
    "reward/",
    "val/",
    "advantage/",
    "rollout/success",
    "rollout/sums",
    "env/failed",
)


def learnt(steps):
    """Metrics of training and evaluation, by step."""
    return [
        {name: value for name, value in step.metrics.items() if name.startswith(LEARNT)}
        for step in steps
    ]


@pytest.mark.parametrize("job", [SUMS, CARTPOLE], ids=["text", "robots"])
def test_lockstep_on_ranks_of_their_own_equals_one_colocated_rank_bit_for_bit(tmp_path, job):
    job = (*job, FIXED, "trainer.total_steps=3")
    colocated = run(tmp_path / "one", (*job, "cluster=local"))
    assert learnt(run_groups(tmp_path / "two", (*job, *PAIR))) == learnt(colocated)


def test_a_bfloat16_policy_with_adapters_reaches_a_rollout_rank_bit_for_bit(tmp_path):
    adapters = ("actor_rollout_ref.model.lora.rank=2", "actor_rollout_ref.model.dtype=bfloat16")
    job = (*SUMS, *adapters, FIXED, "trainer.total_steps=2")
    colocated = run(tmp_path / "one", (*job, "cluster=local"))
    assert learnt(run_groups(tmp_path / "two", (*job, *PAIR))) == learnt(colocated)


VLLM = (
    "rollout=vllm",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.kv_cache_gib=0.05",
)
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
)


@needs_vllm
@pytest.mark.slow  # vLLM is imported, and started twice: half a minute
@pytest.mark.parametrize("adapters", [(), ("actor_rollout_ref.model.lora.rank=2",)])
def test_vllm_on_ranks_of_its_own_equals_one_colocated_rank_bit_for_bit(tmp_path, adapters):
    job = (*SUMS, *VLLM, *adapters, FIXED, "trainer.total_steps=3")
    colocated = run(tmp_path / "one", (*job, "cluster=local"))
    separate = run_groups(tmp_path / "two", (*job, *PAIR))
    assert learnt(separate) == learnt(colocated)
    assert all(0 < step.metrics["rollout/log_prob_gap"] < 1e-4 for step in separate[1:])


@needs_vllm
@pytest.mark.slow  # vLLM is started in another process, as a stream needs it: half a minute
def test_new_weights_reach_answers_that_vllm_is_generating(tmp_path):
    words = (
        *SUMS,
        *VLLM,
        "trainer.max_staleness=2",
        *("data.max_response_length=96", "trainer.val_episodes=0", "trainer.total_steps=6"),
    )
    steps = run_groups(tmp_path, (*words, *PAIR))
    assert max(step.metrics["staleness/mixed_share"] for step in steps) > 0
    assert max(step.metrics.get("sync/swap_seconds", 0.0) for step in steps) > 0


OWN = "tests.dag_worker.test_separate_groups"
BRANCHES = f"""
nodes:
  - {{node_id: prompts, node_type: DATA_LOAD, func: "{OWN}:number"}}
  - {{node_id: double, node_type: CUSTOM, func: "{OWN}:double", dependencies: [prompts]}}
  - {{node_id: rollout_actor, node_type: MODEL_INFERENCE, node_role: ROLLOUT, dependencies: [double]}}
  - {{node_id: fewer, node_type: CUSTOM, func: "{OWN}:drop_first", group: rollout, dependencies: [rollout_actor]}}
  - {{node_id: all, node_type: CUSTOM, func: "{OWN}:note", group: rollout, dependencies: [rollout_actor]}}
  - {{node_id: meet, node_type: CUSTOM, func: "{OWN}:check", group: rollout, dependencies: [fewer, all]}}
  - {{node_id: after, node_type: CUSTOM, func: "{OWN}:same", group: train, dependencies: [meet]}}
  - {{node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [after]}}
  - {{node_id: advantages, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}}
  - {{node_id: actor_train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantages]}}
"""


def number(batch):
    batch["own_number"] = batch["index"] + 1
    return batch


def double(batch):
    assert "uid" not in batch.keys()
    batch["own_number"] = 2 * batch["own_number"]
    return batch


def drop_first(batch):
    return select_rows(batch, batch["index"].diff(prepend=torch.tensor([-1])) == 0)


def note(batch):
    batch["noted"] = torch.full((len(batch),), len(batch))
    return batch


def check(batch):
    rows = batch["noted"][0].item()
    assert len(batch) == rows - rows // 4  # a sibling branch dropped one of four
    assert torch.equal(batch["own_number"], 2 * (batch["index"] + 1))
    return batch


def same(batch):
    return batch


def branches(folder, *words):
    (folder / "own.yaml").write_text(BRANCHES)
    return (*SUMS, f"dag.workflow_file={folder / 'own.yaml'}", "trainer.total_steps=2", *words)


def test_a_cut_graph_with_branches_trains_like_the_colocated_graph(tmp_path):
    job = branches(tmp_path, FIXED)
    colocated = run(tmp_path / "one", (*job, "cluster=local"))
    assert learnt(run_groups(tmp_path / "two", (*job, *PAIR))) == learnt(colocated)


def joined_by_training(folder, *words):
    """The job of `branches`, in which a node of the training ranks joins them."""
    job = branches(folder, *words)
    old = f'func: "{OWN}:check", group: rollout'
    assert BRANCHES.count(old) == 1
    (folder / "own.yaml").write_text(BRANCHES.replace(old, f'func: "{OWN}:same", group: train'))
    return job


def test_nodes_whose_rows_pass_together_train_like_the_colocated_graph(tmp_path):
    job = joined_by_training(tmp_path, FIXED)
    colocated = run(tmp_path / "one", (*job, "cluster=local"))
    assert learnt(run_groups(tmp_path / "two", (*job, *PAIR))) == learnt(colocated)


def test_nodes_whose_rows_pass_together_may_roll_out_as_a_stream(tmp_path):
    job = joined_by_training(tmp_path, *PAIR, "trainer.max_staleness=1")
    steps = run_groups(tmp_path / "run", job)
    assert [step.metrics["actor/updates"] > 0 for step in steps if step.step] == [True, True]


def test_a_stream_runs_the_nodes_before_and_after_its_rollouts(tmp_path):
    job = branches(tmp_path, *PAIR, "trainer.max_staleness=1")
    steps = run_groups(tmp_path / "run", job)
    assert [step.metrics["actor/updates"] > 0 for step in steps if step.step] == [True, True]


def moves_index(batch):
    batch["index"] = batch["index"] + 1000
    return batch


def raises_version(batch):
    batch["policy_version"] = batch["policy_version"] + 7
    return batch


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("moves_index", r"has the prompt index 100\d, but the running prompts have \[\d\]"),
        ("raises_version", "policy_version=7, which never acted on this rank"),
    ],
)
def test_rows_of_no_running_prompt_or_version_are_refused(tmp_path, function, words):
    job = branches(tmp_path, *PAIR, "trainer.max_staleness=1")
    file = tmp_path / "own.yaml"
    file.write_text(file.read_text().replace(f"{OWN}:check", f"{OWN}:{function}"))
    with pytest.raises(InvariantError, match=words):
        run_groups(tmp_path / "run", job)


def rolls_out(batch, context):
    return stages.generate(batch=batch, context=context)


@pytest.mark.parametrize("words", [["pipeline=remax"], ["pipeline=grpo", "own"]])
def test_a_stream_refuses_episodes_of_another_function(tmp_path, words):
    if "own" in words:
        rollout = f'func: "{OWN}:rolls_out", node_type: MODEL_INFERENCE, node_role: ROLLOUT'
        train = "node_id: train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [own]"
        file = tmp_path / "own.yaml"
        file.write_text(f"nodes:\n- {{node_id: own, {rollout}}}\n- {{{train}}}")
        words = [words[0], f"dag.workflow_file={file}"]
    shared = [word for word in SUMS if not word.startswith("pipeline=")]
    with pytest.raises(ConfigError, match=r"plays episodes with .*rollout\.mode=sync"):
        TwoGroups(tmp_path / "run", (*shared, *PAIR, "trainer.max_staleness=1", *words))


def test_refills_of_dapo_reach_the_rollouts(tmp_path):
    job = tuple(word.replace("pipeline=grpo", "pipeline=dapo") for word in SUMS)
    job = (*job, FIXED, "trainer.total_steps=2")
    colocated = run(tmp_path / "one", (*job, "cluster=local"))
    assert learnt(run_groups(tmp_path / "two", (*job, *PAIR))) == learnt(colocated)


@pytest.mark.parametrize("staleness", [0, 1], ids=["lockstep", "stream"])
def test_the_time_of_a_step_is_that_of_its_nodes_and_of_sending_weights(
    tmp_path, monkeypatch, staleness
):
    """Each transfer takes a second more, as that of a large policy."""
    send = WeightSender._send

    def slow(sender, *arguments):
        time.sleep(1.0)
        send(sender, *arguments)

    monkeypatch.setattr(WeightSender, "_send", slow)
    job = (*SUMS, *PAIR, "trainer.val_episodes=0", "trainer.total_steps=3")
    steps = run_groups(tmp_path / "run", (*job, f"trainer.max_staleness={staleness}"))
    for step in (step.metrics for step in steps if step.step > 0):
        stages = sum(value for name, value in step.items() if stage_of(name))
        assert step["time/step_s"] - stages < 0.2
        assert (step["sync/seconds"] > 1.0) == (step["sync/bytes"] > 0)
    sent = [step.metrics for step in steps if step.metrics.get("sync/bytes", 0.0) > 0]
    assert sum(step["sync/seconds"] for step in sent) > len(sent) > 0


@pytest.mark.parametrize(
    ("mode", "copies"),
    [((), 1), (("trainer.max_staleness=1",), 2), (("trainer.max_staleness=1", FIXED), 2)],
    ids=["lockstep", "stream", "schedule"],
)
def test_the_memory_of_a_step_is_also_that_of_rollout_ranks(tmp_path, monkeypatch, mode, copies):
    """Of several reports in a step the first has the largest peak: a terabyte, and less later."""
    terabyte, reported = 1e12, Counter()

    def peak():
        thread = threading.current_thread()
        if thread is threading.main_thread():
            return 1e6
        reported[thread.name] += 1
        return terabyte - reported[thread.name]

    monkeypatch.setattr(accounting, "peak_bytes", peak)
    monkeypatch.setattr(accounting, "reset_peak", lambda: True)
    monkeypatch.setattr(prompt_runner, "REPORT_EVERY_S", 0.0)
    job = (*SUMS, *PAIR, *mode, "trainer.val_episodes=0", "trainer.total_steps=2")
    for step in (step.metrics for step in run_groups(tmp_path / "run", job) if step.step > 0):
        weights = step["memory/actor_weights_bytes"]
        assert step["memory/rollout_weights_bytes"] == copies * weights > 0
        assert step["memory/host_peak_bytes"] > terabyte / 2


def test_steps_without_an_update_send_no_weights_again(tmp_path):
    """They go on with the first weights, also under the next steps' numbers."""
    warm = "trainer.critic_warmup=9"
    job = (*SUMS, *PAIR, warm, "trainer.val_episodes=0", "trainer.total_steps=4")
    steps = run_groups(tmp_path / "run", job)
    sent = [step.metrics["sync/bytes"] for step in steps if step.step > 0]
    assert sent[0] > 0
    assert sent[1:] == [0.0, 0.0, 0.0]


def test_a_schedule_ahead_repeats_and_its_lag_is_the_reported_one(tmp_path):
    job = (*SUMS, *PAIR, FIXED, "trainer.max_staleness=2", "trainer.total_steps=4")
    first, second = (run_groups(tmp_path / name, job) for name in ("a", "b"))
    idle = ("group/rollout/idle_share", "group/train/idle_share")
    for one, other in zip(first, second, strict=True):
        assert {k: v for k, v in untimed(one.metrics).items() if k not in idle} == {
            k: v for k, v in untimed(other.metrics).items() if k not in idle
        }
    behind = [set(step.metrics["staleness/samples"]) for step in first if step.step > 0]
    assert behind == [{0.0}, {1.0}, {2.0}, {2.0}]


@pytest.mark.parametrize(
    ("job", "groups"), [(SUMS, THREE), (CARTPOLE, PAIR)], ids=["text", "robots"]
)
def test_a_stream_trains_on_samples_within_the_bound(tmp_path, job, groups):
    job = (*job, *groups, "trainer.max_staleness=1", "trainer.total_steps=5")
    steps = run_groups(tmp_path / "run", job)
    behind = [n for step in steps for n in step.metrics.get("staleness/samples", [])]
    assert set(behind) == {0.0, 1.0}
    # Which rows meet in a step depends on timing, so a step may have no group of mixed rewards.
    updates = [step.metrics["actor/updates"] for step in steps[1:]]
    assert sum(count > 0 for count in updates) >= len(updates) / 2


def test_the_decoupled_loss_recomputes_the_proximal_log_probs(tmp_path):
    decoupled = "actor_rollout_ref.actor.loss=decoupled"
    job = (*SUMS, *PAIR, decoupled, "trainer.max_staleness=1", "trainer.total_steps=3")
    steps = run_groups(tmp_path / "run", job)
    assert all("time/actor_old_log_prob_s" in step.metrics for step in steps[1:])


def test_a_resumed_run_accounts_for_every_prompt_that_was_started(tmp_path):
    job = (*SUMS, *PAIR, "trainer.max_staleness=2", "trainer.val_episodes=0")
    first = TwoGroups(tmp_path / "first", (*job, "trainer.total_steps=2"))
    first.run()
    resume = f"trainer.resume={tmp_path / 'first'}"
    second = TwoGroups(tmp_path / "second", (*job, resume, "trainer.total_steps=4"))
    second.run()
    totals = second.exchange.edges[0].ledger.totals()
    assert totals["used"] == 4 * 8
    assert totals["started"] == sum(totals.values()) - totals["started"]
    assert (
        totals["started"] == second.exchange.edges[0].ledger.position
    )  # none twice, none left out


def test_colocated_ranks_resume_after_the_prompts_that_a_stream_had_started(tmp_path):
    job = (*SUMS, "trainer.val_episodes=0")
    stream = ("trainer.max_staleness=2", *PAIR, "trainer.total_steps=2")
    run_groups(tmp_path / "first", (*job, *stream))
    saved = read_state(resolve_checkpoint(tmp_path / "first") / STATE_FILE)
    resume = f"trainer.resume={tmp_path / 'first'}"
    [step] = run(tmp_path / "rest", (*job, resume, "trainer.total_steps=3", "cluster=local"))
    rest = read_state(resolve_checkpoint(tmp_path / "rest") / STATE_FILE)
    position = saved["rollouts"]["ledger"]["position"]
    assert rest["loader"]["position"] == position + 8
    assert step.warnings == (
        f"{position - 2 * 8} prompts are skipped: rollout ranks had started them at step 2, and "
        "colocated ranks begin after them.",
    )


def test_a_schedule_says_how_many_prompts_of_a_stream_it_leaves_out(tmp_path):
    job = (*SUMS, *PAIR, "trainer.max_staleness=2", "trainer.val_episodes=0")
    run_groups(tmp_path / "first", (*job, "trainer.total_steps=2"))
    saved = read_state(resolve_checkpoint(tmp_path / "first") / STATE_FILE)
    resume = f"trainer.resume={tmp_path / 'first'}"
    left_out = saved["rollouts"]["ledger"]["position"] - 2 * 8
    [schedule] = run_groups(tmp_path / "a", (*job, resume, FIXED, "trainer.total_steps=3"))
    [stream] = run_groups(tmp_path / "b", (*job, resume, "trainer.total_steps=3"))
    assert schedule.warnings == (
        f"{left_out} prompts are skipped: rollout ranks had started them at step 2, and a "
        "schedule begins after them.",
    )
    assert stream.warnings == ()


NOTED = f"""
nodes:
  - {{node_id: rollout_actor, node_type: MODEL_INFERENCE, node_role: ROLLOUT}}
  - {{node_id: note, node_type: CUSTOM, func: "{OWN}:note_uids", dependencies: [rollout_actor]}}
  - {{node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [note]}}
  - {{node_id: advantages, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}}
  - {{node_id: actor_train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantages]}}
"""
TRAINED: list[tuple[int, str]] = []
"""Number of the prompt, and uid, of each row on which a run has trained."""


def note_uids(batch):
    TRAINED.extend(zip(batch["index"].tolist(), texts(batch, "uid"), strict=True))
    return batch


def test_each_sample_of_a_resumed_stream_trains_once_and_the_rest_waits_or_is_discarded(tmp_path):
    (tmp_path / "own.yaml").write_text(NOTED)
    job = (*SUMS, *PAIR, "trainer.max_staleness=2", "trainer.val_episodes=0")
    job = (*job, f"dag.workflow_file={tmp_path / 'own.yaml'}")
    TRAINED.clear()
    run_groups(tmp_path / "first", (*job, "trainer.total_steps=3"))
    resume = f"trainer.resume={tmp_path / 'first'}"
    run_groups(tmp_path / "second", (*job, resume, "trainer.total_steps=6"))
    assert len({uid for _, uid in TRAINED}) == len(TRAINED) == 6 * 8 * 4
    trained = Counter(number for number, _ in TRAINED)
    assert set(trained.values()) == {4}
    state = resolve_checkpoint(tmp_path / "second") / STATE_FILE
    ledger = torch.load(state, weights_only=False)["rollouts"]["ledger"]
    waiting = [entry[0] for entry in (*ledger["pending"], *ledger["finished"])]
    assert len({*trained, *waiting}) == len(trained) + len(waiting)
    assert {*trained, *waiting} <= set(range(ledger["position"]))
    assert ledger["position"] == len(trained) + len(waiting) + ledger["discarded"]


def test_a_graph_that_trains_nothing_goes_on_after_the_first_step(tmp_path):
    """No node publishes weights; each step plays with those of the start."""
    (tmp_path / "own.yaml").write_text("\n".join(NOTED.splitlines()[:4]))
    job = (*SUMS, *PAIR, f"dag.workflow_file={tmp_path / 'own.yaml'}", "trainer.val_episodes=0")
    steps = run_groups(tmp_path / "run", (*job, "trainer.total_steps=3"))
    assert [step.metrics["rollout/episodes"] for step in steps] == [32.0] * 3


def test_a_schedule_that_is_resumed_equals_one_that_was_not_interrupted(tmp_path):
    job = (*SUMS, *PAIR, FIXED, "trainer.max_staleness=1", "trainer.val_episodes=0")
    constant = "actor_rollout_ref.actor.optim.scheduler=constant"
    job = (*job, constant)
    whole = run_groups(tmp_path / "whole", (*job, "trainer.total_steps=4"))
    run_groups(tmp_path / "first", (*job, "trainer.total_steps=2"))
    resume = f"trainer.resume={tmp_path / 'first'}"
    rest = run_groups(tmp_path / "rest", (*job, resume, "trainer.total_steps=4"))
    assert learnt(rest) == learnt(whole)[2:]


def test_ranks_take_shares_of_equal_work_and_whole_groups():
    class Info:
        def __init__(self, tokens):
            self.sum_tokens = tokens

    found = training_side.shares([Info(n) for n in (9, 1, 5, 5)], ranks=2)
    assert sorted(place for part in found for place in part) == [0, 1, 2, 3]
    assert [sum((9, 1, 5, 5)[place] for place in part) for part in found] == [10, 10]
