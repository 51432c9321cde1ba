"""Host memory of ranks on CPUs: the table of a rank, and what a host holds besides."""

import json
from pathlib import Path

import pytest

from siirl.params import SiiRLArguments
from siirl.params.parser import parse_config
from siirl.preflight.cpu_ranks import cpu_ranks_memory, cpu_table
from siirl.preflight.memory import total
from siirl.preflight.rank_memory import rank_memory
from siirl.preflight.rank_table import ROLLOUT_RANK, TRAINING_RANK
from tests.preflight.camera_spec import QUESTIONS, SPEC

MODEL = {
    **{"model_type": "qwen2", "vocab_size": 16384, "hidden_size": 512, "intermediate_size": 1536},
    **{"num_hidden_layers": 14, "num_attention_heads": 8, "num_key_value_heads": 4},
}
WEIGHTS = 60_846_592
ACTOR = "actor_rollout_ref.actor"


@pytest.fixture
def job(tmp_path: Path):
    """A job of text that trains the model in float32 on two CPU ranks."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    file = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [WEIGHTS], "data_offsets": [0, 4 * WEIGHTS]}
    header = json.dumps({"weight": entry}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with file.open("r+b") as stream:
        stream.truncate(8 + len(header) + 4 * WEIGHTS)

    def configured(*words: str) -> SiiRLArguments:
        return parse_config(
            [
                *("pipeline=grpo", "env=math", "model=causal_lm", "rollout=hf"),
                *(f"actor_rollout_ref.model.path={tmp_path}", "trainer.n_gpus_per_node=2"),
                *("actor_rollout_ref.model.dtype=float32", f"{ACTOR}.micro_batch_tokens=1024"),
                *("env.num_servers=2", "env.envs_per_server=4", "trainer.total_steps=3"),
                *("data.max_prompt_length=64", "data.max_response_length=192", *words),
            ]
        )

    return configured


def test_ranks_on_cpus_hold_what_the_table_of_a_rank_says(job) -> None:
    """Two ranks, each with all parts of the update: also the acting copy, gathered blocks and
    activations; and of what the passes free again, 0.4 stay with the C library.
    """
    config = job("trainer.async_save=false")
    table = rank_memory(config, QUESTIONS)
    assert table is not None
    phase, peak = table.peak
    assert phase == "update"
    found = dict(cpu_ranks_memory(config, QUESTIONS))
    freed = found.pop("freed blocks")
    assert total(found.items()) == pytest.approx(2 * peak)
    update = dict(dict(table.phases)["update"])
    passes = sum(size for name, size in update.items() if name != "gradients")
    assert freed == pytest.approx(2 * 0.4 * passes) and passes > 600e6
    assert found["acting copy"] == 2 * 4 * WEIGHTS
    assert found["weights"] == 4 * WEIGHTS
    assert found["activations"] > 2 * 600e6


def test_a_copy_for_a_checkpoint_is_beside_the_rollout_that_follows(job) -> None:
    """A rank's half of the weights and of both moments, in float32."""
    copied = (4 + 8) * WEIGHTS / 2
    during = dict(cpu_table(job("trainer.save_freq=1"), QUESTIONS).phases)
    assert dict(during["save"]) == {"a checkpoint in writing": copied}
    assert dict(during["rollout"])["a checkpoint in writing"] == copied
    assert "a checkpoint in writing" not in dict(during["update"])
    last = dict(cpu_table(job("trainer.save_freq=-1"), QUESTIONS).phases)
    assert "save" in last
    assert "a checkpoint in writing" not in dict(last["rollout"])
    written = dict(cpu_table(job("trainer.async_save=false"), QUESTIONS).phases)
    assert "save" not in written


@pytest.mark.parametrize(("staleness", "beside"), [(0, "rollout"), (1, "update")])
def test_training_ranks_go_on_while_a_checkpoint_is_written_unless_they_wait_for_rollouts(
    staleness: int, beside: str, job
) -> None:
    words = ("dag.groups={rollout: 1, train: 1}", "trainer.save_freq=1")
    config = job(*words, f"trainer.max_staleness={staleness}")
    training = cpu_table(config, QUESTIONS, kind=TRAINING_RANK)
    rolling = cpu_table(config, QUESTIONS, kind=ROLLOUT_RANK)
    written = {name for name, parts in training.phases if "a checkpoint in writing" in dict(parts)}
    assert written == {"save", beside}
    assert dict(dict(training.phases)[beside])["a checkpoint in writing"] == 12 * WEIGHTS
    assert "save" not in dict(rolling.phases)
    found = cpu_ranks_memory(config, QUESTIONS)
    assert total(found) == pytest.approx(training.peak[1] + rolling.peak[1])


def test_replicas_of_shards_write_a_checkpoint_once(job) -> None:
    """Two whole copies, of which each rank writes half."""
    phases = dict(cpu_table(job(f"{ACTOR}.fsdp_size=1"), QUESTIONS).phases)
    assert dict(phases["save"]) == {"a checkpoint in writing": 12 * WEIGHTS / 2}


@pytest.mark.parametrize(
    "word", [f"{ACTOR}.offload_optimizer=true", "actor_rollout_ref.ref.offload=true"]
)
def test_a_host_has_no_other_place_for_what_a_gpu_moves_away(word: str, job) -> None:
    kl = f"{ACTOR}.use_kl_loss=true"
    assert cpu_ranks_memory(job(kl, word), QUESTIONS) == cpu_ranks_memory(job(kl), QUESTIONS)


def test_keys_and_values_are_those_of_no_more_episodes_than_a_step_or_an_evaluation_has(
    job,
) -> None:
    """14 blocks of keys and values of 256 numbers for 256 tokens, on each of two ranks."""

    def rows(*words: str) -> float:
        config = job("env.envs_per_server=100", "data.train_batch_size=3", *words)
        size = dict(dict(cpu_table(config, QUESTIONS).phases)["rollout"])["keys and values"]
        return size / (14 * 2 * 256 * 4 * 256)

    none = "trainer.val_episodes=0"
    assert rows("actor_rollout_ref.rollout.n=4", none) == 6
    assert rows("actor_rollout_ref.rollout.n=4", "trainer.val_episodes=20") == 20
    assert rows("actor_rollout_ref.rollout.n=400", none) == 100


def test_a_new_policy_counts_by_its_number_of_weights() -> None:
    config = parse_config(["actor_rollout_ref.model.path=null", "trainer.n_gpus_per_node=1"])
    parts = dict(cpu_ranks_memory(config, SPEC))
    assert parts["weights"] == 4 * 2_200_000
    assert parts["activations"] == 200e6  # of the shipped policy
    beside = dict(cpu_ranks_memory(config, SPEC, with_critic=True))
    assert beside["critic's weights"] == 4 * 2_200_000
