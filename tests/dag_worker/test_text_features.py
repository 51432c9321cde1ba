"""Whole text runs in one process with rarer features: adapters, files resumed in mid-epoch, a
reward model, several agents, vLLM.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from one_process import run, untimed
from tiny_training import stored_weights
from torch.autograd.graph import saved_tensors_hooks

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.dag_worker.text_components import TextBuilder
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.reference import WithoutAdapter
from siirl.engine.critic.critic import Critic
from siirl.engine.reward_manager.reward_model import load_reward_model
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.offload import STAYING, OffloadedTensors
from siirl.files.paths import find
from siirl.params import RewardModelArguments
from siirl.params.env_spec import describe_env
from siirl.params.model_args import LoraArguments
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from siirl.reporting.rollout_files import read_rollouts

SMALL = (
    "env=math", "cluster=local", "data.train_batch_size=4", "data.max_response_length=6", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.warmup_steps=0", "env.envs_per_server=16",
    "trainer.val_episodes=0", "trainer.max_minutes=null", "trainer.save_freq=1", "trainer.deterministic=true", "trainer.threads_per_rank=1",
)  # fmt: skip
KL = "actor_rollout_ref.actor.use_kl_loss=true"
ADAPTERS = ("actor_rollout_ref.model.lora.rank=4", "actor_rollout_ref.model.lora.alpha=8")
CPU, ONE = torch.device("cpu"), OneProcess()


def train(folder: Path, *overrides: str) -> list[StepDone]:
    return run(folder, [*SMALL, *overrides])


def answers(folder: Path, step: int) -> list[dict]:
    return list(read_rollouts(folder / "rollouts", kind="train", step=step))


# The critic


def test_the_critic_is_sharded_offloaded_and_recomputed_as_the_policy_is():
    actor = "actor_rollout_ref.actor"

    def critic_of(*words: str) -> Critic:
        config = parse_config([*SMALL, "pipeline=ppo", *words])
        return TextBuilder(config, describe_env(config), ranks=ONE, device=CPU).critic(1)

    def saved(critic: Critic) -> int:
        """Bytes that autograd keeps of a forward pass."""
        kept = []
        ids = torch.arange(40)[None]
        with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda each: each):
            critic.model(ids, ids)
        return sum(tensor.nbytes for tensor in {id(each): each for each in kept}.values())

    usual = critic_of()
    economical = critic_of(
        "actor_rollout_ref.model.gradient_checkpointing=true",
        *(f"{actor}.offload_optimizer=true", f"{actor}.reduce_once=true"),
    )
    assert usual.engine.moments is STAYING
    assert isinstance(economical.engine.moments, OffloadedTensors)
    assert not usual.engine.sharding.reduce_once
    assert economical.engine.sharding.reduce_once
    assert saved(economical) < saved(usual) / 2


# The reference of a KL


def reference_of(*overrides: str, adapters: LoraArguments | None = None):
    """A job's KL reference, its trained model and the worker."""
    config = parse_config([*SMALL, "pipeline=grpo", *overrides])
    make = TextBuilder(config, describe_env(config), ranks=ONE, device=CPU)
    model = make.load()
    # the only attribute that is read; real adapters take fifteen seconds of imports
    model.lora = adapters
    actor = make.actor(make.engine(model, trained=True))
    return make.reference(actor, model), model, actor


def test_without_a_kl_there_is_no_reference():
    assert reference_of()[0] is None


def test_a_kl_without_weight_needs_no_reference():
    assert reference_of(KL, "actor_rollout_ref.actor.kl_loss_coef=0")[0] is None


def test_a_run_with_a_kl_without_weight_trains(tmp_path):
    words = ("pipeline=grpo", KL, "actor_rollout_ref.actor.kl_loss_coef=0")
    [step] = train(tmp_path, *words, "trainer.total_steps=1")
    assert step.metrics["actor/updates"] == 1.0


def test_with_adapters_the_reference_is_the_base_model_without_a_copy():
    reference, model, actor = reference_of(KL, adapters=LoraArguments(rank=4))
    assert isinstance(reference, WithoutAdapter)
    assert reference.model is model
    assert reference.actor is actor


def test_a_reference_from_a_folder_is_a_separate_model_also_under_adapters():
    reference, model, _ = reference_of(
        KL, "actor_rollout_ref.ref.path=assets/tiny_lm_tools", adapters=LoraArguments(rank=4)
    )
    assert isinstance(reference, Actor)
    assert reference.engine.module is not model


def test_without_adapters_the_reference_is_a_frozen_copy():
    reference, model, _ = reference_of(KL)
    assert isinstance(reference, Actor)
    assert reference.engine.optimizer is None
    copied, trained = reference.engine.module.state_dict(), model.state_dict()
    assert all(torch.equal(copied[name], weight) for name, weight in trained.items())
    assert not {weight.data_ptr() for weight in copied.values()} & {
        weight.data_ptr() for weight in trained.values()
    }


# Adapters


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> tuple[Path, list[StepDone], list[bool]]:
    """Two steps of PPO on adapters with a KL and recomputed activations: folder, metrics, and
    whether the reference is the model below.
    """
    folder = tmp_path_factory.mktemp("adapted")
    words = [
        *SMALL,
        "pipeline=ppo",
        KL,
        *ADAPTERS,
        "actor_rollout_ref.model.gradient_checkpointing=true",
        "trainer.total_steps=2",
    ]
    config = parse_config(words)
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=folder,
    )
    steps, shared = [], []
    for event in worker.run():
        if isinstance(event, StepDone):
            steps.append(event)
            reference = worker.components.context.reference
            shared.append(
                isinstance(reference, WithoutAdapter)
                and reference.model is worker.components.context.actor.engine.module
            )
    return folder, steps, shared


def actor_weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return stored_weights(folder / "checkpoints" / f"step_{step:08d}" / "actor")


@pytest.mark.slow  # importing peft takes fifteen seconds
def test_the_kl_of_adapters_starts_at_zero_and_compares_with_the_base_model(adapted):
    _, steps, shared = adapted
    first, second = (event.metrics["actor/kl_loss"] for event in steps)
    assert abs(first) < 1e-8 < second
    assert shared == [True, True]


@pytest.mark.slow  # as above
def test_a_whole_run_moves_adapters_and_leaves_the_shipped_weights_as_they_are(adapted):
    folder, steps, _ = adapted
    shipped, trained = (
        stored_weights(find("assets/tiny_lm")),
        actor_weights(folder, 2),
    )
    below = {
        name.replace(".base_layer.", "."): weight
        for name, weight in trained.items()
        if ".lora_" not in name
    }
    assert below.keys() >= shipped.keys()
    assert all(torch.equal(below[name], weight) for name, weight in shipped.items())
    # zeros, as peft makes them
    ups = [weight for name, weight in trained.items() if ".lora_B." in name]
    assert ups
    assert all(weight.abs().max() > 0 for weight in ups)
    assert [event.metrics["critic/updates"] for event in steps] == [1.0, 1.0]


@pytest.mark.slow  # as above, and a second run
def test_recomputed_activations_do_not_change_a_run(adapted, tmp_path):
    folder, steps, _ = adapted
    kept = train(tmp_path / "run", "pipeline=ppo", KL, *ADAPTERS, "trainer.total_steps=2")
    assert [untimed(event.metrics) for event in kept] == [untimed(event.metrics) for event in steps]
    one, other = actor_weights(folder, 2), actor_weights(tmp_path / "run", 2)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


# Prompts from files


def test_a_run_resumed_within_an_epoch_asks_the_remaining_prompts(tmp_path):
    rows = [
        {"question": f"What is {n} plus {n}?", "answer": f"It is #### {n + n}"} for n in range(10)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = (
        "pipeline=grpo",
        f"data.train_files=[{tmp_path / 'train.jsonl'}]",
        "data.heldout_share=0",
        "trainer.save_rollouts=-1",
    )
    train(tmp_path / "whole", *job, "trainer.total_steps=3")
    train(tmp_path / "parts", *job, "trainer.total_steps=2")
    (resumed,) = train(
        tmp_path / "parts", *job, "trainer.total_steps=3", f"trainer.resume={tmp_path / 'parts'}"
    )
    # stopped with two of ten prompts of the first epoch left
    assert resumed.metrics["data/epoch"] == pytest.approx(1.2)

    def asked(folder: str, step: int) -> list[str]:
        return [line["prompt"][0]["content"] for line in answers(tmp_path / folder, step)]

    assert asked("parts", 3) == asked("whole", 3)
    # each of the epoch once
    assert len(set(asked("whole", 1)) | set(asked("whole", 2)) | set(asked("whole", 3)[:8])) == 10
    one, other = actor_weights(tmp_path / "parts", 3), actor_weights(tmp_path / "whole", 3)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


# A reward model


@pytest.fixture
def classifier(tmp_path) -> Path:
    """A folder with a tiny sequence classifier of one output, which reads with the shipped
    tokenizer.
    """
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(str(find("assets/tiny_lm")))
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForSequenceClassification(
            Qwen2Config(
                vocab_size=len(tokenizer), max_position_embeddings=128, num_labels=1, **sizes
            )
        )
    model.save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    return tmp_path / "classifier"


def test_a_run_is_rewarded_by_a_classifiers_score_of_each_conversation(classifier, tmp_path):
    (step,) = train(
        tmp_path / "run",
        "pipeline=grpo",
        "reward.name=model",
        f"reward_model.path={classifier}",
        "trainer.total_steps=1",
    )
    lines = answers(tmp_path / "run", 1)
    model = load_reward_model(RewardModelArguments(path=str(classifier)), device=CPU, ranks=ONE)
    for line in lines:
        conversation = [
            *line["prompt"],
            {"role": "assistant", "content": line["turns"][0]["content"]},
        ]
        ids = model.tokenizer(
            model.tokenizer.apply_chat_template(conversation, tokenize=False),
            add_special_tokens=False,
        )["input_ids"]
        said = model.classifier(input_ids=torch.tensor([ids])).logits[0, 0].item()
        assert line["reward"] == pytest.approx(said, abs=1e-6)
    assert len({line["reward"] for line in lines}) > 4
    assert step.metrics["reward/mean_score"] == pytest.approx(
        sum(line["reward"] for line in lines) / 16, abs=1e-6
    )
    assert step.metrics["actor/grad_norm"] > 0


# Several agents


def test_each_agent_has_a_row_with_its_reward_in_the_questions_group(tmp_path):
    (step,) = train(
        tmp_path / "run", "pipeline=ppo", "env.kwargs.num_agents=2", "trainer.total_steps=1"
    )
    lines = answers(tmp_path / "run", 1)
    # questions, rollouts, agents
    assert step.metrics["rollout/episodes"] == len(lines) == 4 * 4 * 2
    # of four questions, as ppo_mini_batch_size says
    assert step.metrics["actor/updates"] == step.metrics["critic/updates"] == 1.0
    for line in lines:
        said = line["turns"][0]["content"]
        assert line["reward"] == float(line["success"]) == float(said == line["ground_truth"])
    by_group = {
        group: [line for line in lines if line["group"] == group]
        for group in {line["group"] for line in lines}
    }
    assert len(by_group) == 4
    for group in by_group.values():
        assert len({line["prompt"][-1]["content"] for line in group}) == 1
        episodes = {line["uid"][: -len("-a0")] for line in group}
        assert {line["uid"] for line in group} == {
            f"{episode}-a{agent}" for episode in episodes for agent in (0, 1)
        }
        assert len(episodes) == 4
    pairs: dict[str, set[str]] = {}
    for line in lines:
        pairs.setdefault(line["uid"][: -len("-a0")], set()).add(line["turns"][0]["content"])
    assert any(len(said) == 2 for said in pairs.values())  # two agents sample independently


# vLLM


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
)
@pytest.mark.slow  # vLLM is imported and started: fifteen seconds
def test_vllm_acts_with_the_weights_of_the_step_before(tmp_path):
    steps = train(
        tmp_path / "run",
        "pipeline=grpo",
        "rollout=vllm",
        "actor_rollout_ref.rollout.kv_cache_gib=0.05",
        "trainer.total_steps=2",
    )
    assert [event.metrics["policy/version"] for event in steps] == [1.0, 2.0]
    assert all(0 < event.metrics["rollout/log_prob_gap"] < 1e-4 for event in steps)
    assert [
        {line["policy_version"] for line in answers(tmp_path / "run", step)} for step in (1, 2)
    ] == [{0}, {1}]
