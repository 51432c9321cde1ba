"""The memory table of a rank: what each setting adds, and presets against their GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from siirl.engine.critic.value_model import ValueModel
from siirl.engine.critic.value_scorers import without_head
from siirl.errors import ConfigError
from siirl.models.language_model import LanguageModel
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config
from siirl.params.sizes import GIB
from siirl.preflight.early_checks import check_early
from siirl.preflight.gpu_fit import USABLE, gpu_problems, table_lines
from siirl.preflight.prepare import prepare
from siirl.preflight.rank_memory import rank_memory
from siirl.preflight.rank_table import ROLLOUT_RANK
from tests.preflight.camera_spec import QUESTIONS
from tests.preflight.published_models import (
    ADAPTERS,
    BILLION,
    EIGHTY_GB,
    EXPERTS,
    LIBERO_10,
    ONE_GPU,
    OPENVLA,
    QWEN,
    ROLLOUT,
    causal_lm,
    libero,
    remedies,
    saved_by,
    sparse,
    text,
)


def test_all_weights_of_openvla_on_one_gpu_take_112_gib_with_gradients_and_moments(
    folder: Any,
) -> None:
    config = libero(
        folder(OPENVLA), "actor_rollout_ref.model.lora.rank=0", trainer="gpu_libero_one"
    )
    table = rank_memory(config, LIBERO_10)
    assert table is not None
    parts = {**dict(table.held), **dict(dict(table.phases)["update"])}
    states = parts["weights"] + parts["Adam"] + parts["gradients"]
    assert states / GIB == pytest.approx(112, abs=0.5)


def test_one_rank_casts_the_weights_of_a_block_and_without_recomputation_of_all(
    folder: Any,
) -> None:
    """A block of Llama 7B has 202 million weights, 0.38 GiB in bfloat16; projectors have 88."""
    path = folder(OPENVLA)

    def cast(*words: str) -> float:
        words = ("actor_rollout_ref.model.lora.rank=0", *words)
        table = rank_memory(libero(path, *words, trainer="gpu_libero_one"), LIBERO_10)
        assert table is not None
        return dict(dict(table.phases)["update"])["cast weights"] / GIB

    assert cast() == pytest.approx(0.38 + 0.16, abs=0.01)
    assert cast("actor_rollout_ref.model.options.recompute=false") == pytest.approx(13.5, abs=0.2)


def test_one_rank_holds_the_model_below_adapters_in_the_type_of_the_passes(folder: Any) -> None:
    """7.54 billion weights in bfloat16 are 14.0 GiB; two adapters' 111 million in float32 0.4."""
    config = libero(folder(OPENVLA), trainer="gpu_libero_one")
    table = rank_memory(config, LIBERO_10)
    assert table is not None
    assert dict(table.held)["weights"] / GIB == pytest.approx(14.4, abs=0.1)
    assert "cast weights" not in dict(dict(table.phases)["update"])


def test_ranks_share_the_model_below_adapters_in_the_type_of_the_passes(folder: Any) -> None:
    table = rank_memory(
        libero(folder(OPENVLA), "trainer.n_gpus_per_node=8", trainer="gpu_libero_one"), LIBERO_10
    )
    assert table is not None
    assert dict(table.held)["weights"] / GIB == pytest.approx(14.4 / 8, abs=0.02)


def test_a_reference_of_its_own_beside_adapters_is_in_float32(folder: Any) -> None:
    """7.51 billion weights, without those that no pass reads, in float32: 28.0 GiB."""
    path = folder(OPENVLA)
    words = (f"actor_rollout_ref.ref.path={path}", "actor_rollout_ref.actor.use_kl_loss=true")
    table = rank_memory(libero(path, *words, trainer="gpu_libero_one"), LIBERO_10)
    assert table is not None
    assert dict(table.held)["reference"] / GIB == pytest.approx(28.0, abs=0.05)


def test_ranks_share_a_reference_in_the_type_of_the_passes(folder: Any) -> None:
    path = folder(OPENVLA)
    words = (f"actor_rollout_ref.ref.path={path}", "actor_rollout_ref.actor.use_kl_loss=true")
    config = libero(path, *words, "trainer.n_gpus_per_node=8", trainer="gpu_libero_one")
    table = rank_memory(config, LIBERO_10)
    assert table is not None
    assert dict(table.held)["reference"] / GIB == pytest.approx(28.0 / 2 / 8, abs=0.01)


def test_the_gradient_of_a_head_is_whole_beside_those_that_are_added_up(folder: Any) -> None:
    """152,064 x 3584 weights in float32, and two blocks of 16 MiB of logits; adapters leave the
    head alone, and FSDP2 gathers it.
    """

    def of(*words: str) -> float:
        table = rank_memory(text(folder(QWEN), ONE_GPU, *words), QUESTIONS)
        assert table is not None
        return dict(dict(table.phases)["update"])["logits and their gradient"]

    blocks = 2 * 4 * 2**22
    assert of() == 4 * 152_064 * 3584 + blocks
    assert of(ADAPTERS) == blocks
    assert of("trainer.n_gpus_per_node=2") == blocks


def test_a_single_pass_makes_gradients_while_it_frees_activations(folder: Any) -> None:
    """It holds whichever is larger; passes after the first hold both."""
    few = (ONE_GPU, "actor_rollout_ref.actor.ppo_mini_batch_size=1", f"{ROLLOUT}.n=4")
    row, gradients = 4024, 4 * 7_615_616_512  # of the preset: prompt and response

    def update(tokens: int, *, recomputes: bool) -> dict[str, float]:
        words = (
            f"actor_rollout_ref.actor.micro_batch_tokens={tokens}",
            f"actor_rollout_ref.model.gradient_checkpointing={recomputes}",
        )
        table = rank_memory(text(folder(QWEN), *few, *words), QUESTIONS)
        assert table is not None
        assert dict(dict(table.phases)["optimiser's step"])["gradients"] == gradients
        return dict(dict(table.phases)["update"])

    assert update(4 * row, recomputes=True) == {"gradients": gradients}
    kept = update(4 * row, recomputes=False)
    assert "gradients" not in kept
    assert kept["activations"] > gradients
    assert update(4 * row - 1, recomputes=False)["gradients"] == gradients


@pytest.mark.parametrize(
    ("tokens", "grown"),
    [
        # entering the last block: outer weights and two blocks; gradients of the head, and of the
        # block once in bfloat16 and once in float32
        (16 * 4024, lambda outer, head, block: 2 * (outer + 2 * block) + 2 * head + 6 * block),
        # at the end: outer weights and a block; the outer gradients twice
        (1000, lambda outer, head, block: 2 * (outer + block) + 6 * outer),
    ],
)
def test_ranks_gather_whole_layers_until_their_gradients_are_added_up(
    tokens: int, grown: Callable[[int, int, int], int], folder: Any
) -> None:
    words = (f"actor_rollout_ref.actor.micro_batch_tokens={tokens}", "trainer.n_gpus_per_node=2")
    table = rank_memory(text(folder(QWEN), *words), QUESTIONS)
    assert table is not None
    head = QWEN["vocab_size"] * QWEN["hidden_size"]
    outer = 2 * head + QWEN["hidden_size"]
    block = (7_615_616_512 - outer) // QWEN["num_hidden_layers"]
    update = dict(dict(table.phases)["update"])
    assert update["gathered blocks"] == grown(outer, head, block)
    assert update["gradients"] == 4 * 7_615_616_512 / 2
    assert ("activations" in update) == (tokens > 1000)


def test_ranks_share_weights_gradients_and_moments_and_not_the_acting_copy(folder: Any) -> None:
    path = folder(OPENVLA)
    eight = rank_memory(libero(path, trainer="gpus_libero"), LIBERO_10)
    four = rank_memory(libero(path, "trainer.n_gpus_per_node=4", trainer="gpus_libero"), LIBERO_10)
    assert eight is not None
    assert four is not None
    assert dict(four.held)["weights"] == 2 * dict(eight.held)["weights"]
    assert dict(four.held)["Adam"] == 2 * dict(eight.held)["Adam"]
    assert dict(four.held)["acting copy"] == dict(eight.held)["acting copy"]


def test_of_separate_groups_training_is_shared_by_the_ranks_that_train(folder: Any) -> None:
    """Of 8 ranks 4 train: each holds a quarter of the weights, and acts with none."""
    path = folder(OPENVLA)
    colocated = rank_memory(libero(path, trainer="gpus_libero"), LIBERO_10)
    words = ("dag.groups={rollout: 4, train: 4}",)
    separate = rank_memory(libero(path, *words, trainer="gpus_libero"), LIBERO_10)
    assert colocated and separate
    assert dict(separate.held)["weights"] == 2 * dict(colocated.held)["weights"]
    assert "acting copy" not in dict(separate.held)


def test_a_stream_counts_the_episodes_that_staleness_admits(folder: Any) -> None:
    """Keys and values of 2 x 16 x 8 episodes on 4 ranks, not of all environments."""
    words = (
        *("dag.groups={rollout: 4, train: 4}", "trainer.n_gpus_per_node=8"),
        *("actor_rollout_ref.rollout.name=hf", "data.train_batch_size=16"),
        *("actor_rollout_ref.rollout.n=8", "env.num_servers=8", "env.envs_per_server=512"),
        "trainer.val_episodes=0",
    )

    def keys(*more: str) -> float:
        config = text(folder(QWEN), *words, *more)
        table = rank_memory(config, QUESTIONS, kind=ROLLOUT_RANK)
        assert table
        return dict(dict(table.phases)["rollout"])["keys and values"]

    once = keys()
    assert keys("trainer.max_staleness=1") == pytest.approx(2 * once)
    assert keys("trainer.max_staleness=3") == pytest.approx(4 * once)


def test_a_rollout_rank_with_vllm_holds_vllms_weights_and_keys_alone(folder: Any) -> None:
    words = ("dag.groups={rollout: 1, train: 7}", "trainer.n_gpus_per_node=8")
    few = "actor_rollout_ref.actor.micro_batch_tokens=1536"
    config = text(folder(QWEN), *words, few, "actor_rollout_ref.rollout.kv_cache_gib=200")
    table = rank_memory(config, QUESTIONS)
    assert table
    assert table.held == ()
    ((_, line), *_) = table_lines(table, gpu=EIGHTY_GB)
    assert line.endswith("in its rollout, estimated")
    assert dict(dict(table.phases)["rollout"]) == {
        "vLLM's weights": 2 * 7_615_616_512,
        "keys and values": 200 * GIB,
    }


def test_options_of_sharding_move_the_tensors_that_they_name(folder: Any) -> None:
    actor = "actor_rollout_ref.actor"
    path = folder(OPENVLA)

    def of(*words: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        table = rank_memory(libero(path, *words, trainer="gpus_libero"), LIBERO_10)
        assert table is not None
        return dict(table.held), {name: dict(parts) for name, parts in table.phases}

    held, phases = of()
    assert of(f"{actor}.fsdp_size=4")[0]["weights"] == 2 * held["weights"]
    away, step = of(f"{actor}.offload_optimizer=true")
    assert "Adam" not in away
    assert step["optimiser's step"]["Adam"] == held["Adam"]
    once = of(f"{actor}.reduce_once=true")[1]
    assert once["update"]["gradients"] == 8 * phases["update"]["gradients"]
    whole = of(f"{actor}.reshard_after_forward=false")[1]["update"]["gathered blocks"]
    assert whole > phases["update"]["gathered blocks"] + 12 * GIB


def test_fewer_chunks_a_pass_need_less_memory_and_are_a_remedy(folder: Any) -> None:
    words = (
        "actor_rollout_ref.actor.micro_batch_chunks=null",
        "actor_rollout_ref.actor.micro_batch_size=3",
    )
    config = libero(folder(OPENVLA), *words, trainer="gpus_libero")
    (problem,) = gpu_problems(config, LIBERO_10, gpu=EIGHTY_GB)
    # three trajectories of 65 chunks, halved once
    assert "or actor_rollout_ref.actor.micro_batch_chunks=97" in str(problem)


@pytest.mark.parametrize(("trainer", "gib"), [("gpu_libero_one", 22.4), ("gpus_libero", 38.6)])
def test_presets_of_libero_fit_80_gb_with_openvla_7b(folder: Any, trainer: str, gib: float) -> None:
    """The figure is that of the preset's comment."""
    config = libero(folder(OPENVLA), trainer=trainer)
    table = rank_memory(config, LIBERO_10)
    assert table is not None
    assert table.peak[0] == "update"
    assert table.peak[1] / GIB == pytest.approx(gib, abs=0.5)
    assert gpu_problems(config, LIBERO_10, gpu=EIGHTY_GB) == []


def test_the_preset_of_text_fits_80_gb_with_qwen_7b(folder: Any) -> None:
    config = text(folder(QWEN))
    assert config.actor_rollout_ref.rollout.mode == "async"  # what several ranks need
    table = rank_memory(config, QUESTIONS)
    assert table is not None
    held = sum(dict(table.held).values())
    phases = {name: (held + sum(dict(parts).values())) / GIB for name, parts in table.phases}
    assert phases["update"] == pytest.approx(28.2, abs=0.5)
    assert phases["rollout"] == pytest.approx(52.8, abs=0.5)
    assert gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB) == []


def test_an_engine_that_does_not_sleep_holds_its_memory_during_the_update(folder: Any) -> None:
    config = text(folder(QWEN), "actor_rollout_ref.rollout.sleep=false")
    table = rank_memory(config, QUESTIONS)
    assert table is not None
    assert table.peak[0] == "update"
    assert dict(table.held)["keys and values"] == 28 * GIB


def test_a_row_of_the_first_openvla_has_a_pass_an_action(folder: Any) -> None:
    words = ("actor_rollout_ref.actor.micro_batch_chunks=null", "trainer.n_gpus_per_node=1")
    path = folder(OPENVLA)
    peaks = []
    for policy in ("openvla", "openvla_oft", "own:policy"):
        name = f"actor_rollout_ref.model.policy={policy}"
        table = rank_memory(libero(path, *words, name, trainer="gpus_libero"), LIBERO_10)
        assert table is not None
        peaks.append(dict(dict(table.phases)["update"])["activations"])
    first, parallel, own = peaks
    assert 6 < first / parallel < 8  # eight times the observations, with 49 places less in each
    assert own == parallel


def test_of_an_unknown_architecture_the_plan_counts_the_weights_as_a_lower_bound(
    folder: Any,
) -> None:
    """Two billion weights on two GPUs: float32 with gradients and Adam, 16 bytes each, are shared;
    vLLM's bfloat16 is whole.
    """
    path = sparse(folder(EXPERTS), weight=2)
    config = text(path, "trainer.n_gpus_per_node=2")
    table = rank_memory(config, QUESTIONS)
    assert table is not None and table.lower_bound
    assert dict(table.held) == {"weights": 4 * BILLION, "Adam": 8 * BILLION}
    assert {name: dict(parts) for name, parts in table.phases} == {
        "rollout": {"vLLM's weights": 4 * BILLION, "keys and values": 28 * GIB},
        "update": {"gradients": 4 * BILLION},
        "optimiser's step": {"gradients": 4 * BILLION},
    }
    [(topic, first), *_] = table_lines(table, gpu=EIGHTY_GB)
    assert topic == "a GPU"
    assert first.startswith(
        "at least 42.9 GiB of 79.0 GiB in its rollout, a lower bound, without the activations of "
        "an unknown architecture; throughout weights 3.7 GiB"
    )
    assert gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB) == []


def test_a_policy_that_trains_its_expert_alone_has_moments_of_it_alone(folder: Any) -> None:
    """Three billion weights, of which one is trained, in float32."""
    names = {"paligemma_with_expert.paligemma.weight": 2, "expert": 1}
    path = sparse(folder({"type": "pi0"}), **names)
    words = ("actor_rollout_ref.model.policy=pi0", "actor_rollout_ref.model.lora.rank=0")
    table = rank_memory(libero(path, *words, trainer="gpu_libero_one"), LIBERO_10)
    assert table is not None and table.lower_bound
    assert dict(table.held) == {"weights": 12 * BILLION, "Adam": 8 * BILLION}
    assert dict(dict(table.phases)["update"]) == {"gradients": 4 * BILLION}


def test_a_users_policy_of_unknown_architecture_has_no_table(folder: Any) -> None:
    """It may train a few of its weights."""
    path = sparse(folder({"type": "own"}), weight=1)
    words = ("actor_rollout_ref.model.policy=own:policy",)
    assert rank_memory(libero(path, *words, trainer="gpu_libero_one"), LIBERO_10) is None


def test_a_critic_of_unknown_architecture_counts_without_its_head(folder: Any) -> None:
    path = sparse(folder(EXPERTS), lm_head=1, weight=2)
    config = text(path, ONE_GPU)
    table = rank_memory(config, QUESTIONS, with_critic=True)
    assert table is not None and table.lower_bound
    held = dict(table.held)
    assert held["weights"] == 12 * BILLION
    assert held["critic's weights"] == 8 * BILLION


def test_a_critic_takes_the_measured_memory_of_a_step_of_its_own(folder: Any) -> None:
    """Weights, gradients and moments in bytes, and what autograd saves within 15 %."""
    config = {
        **{"model_type": "qwen2", "vocab_size": 80000, "hidden_size": 64, "intermediate_size": 176},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4},
    }
    words = (
        *("trainer.n_gpus_per_node=1", "actor_rollout_ref.actor.micro_batch_tokens=2048"),
        "actor_rollout_ref.model.gradient_checkpointing=false",
    )
    table = rank_memory(text(folder(config), *words), QUESTIONS, with_critic=True)
    assert table is not None
    held, update = dict(table.held), dict(dict(table.phases)["critic's update"])
    trunk = without_head(LanguageModel(causal_lm(config)))
    module = ValueModel(trunk=trunk, feature_size=64, normalize_returns=True)
    places = torch.arange(2048)[None]
    with torch.autocast("cpu", torch.bfloat16):
        saved, values = saved_by(module, lambda: module(places % 64, places))
    values.sum().backward()
    optimiser = torch.optim.AdamW(module.parameters())
    optimiser.step()
    moments = [state["exp_avg"].nbytes for state in optimiser.state.values()]
    weights = sum(weight.nbytes for weight in module.parameters())
    assert held["critic's weights"] == weights
    assert held["critic's Adam"] == 2 * sum(moments)
    assert update["gradients"] == weights
    assert update["activations"] + update["cast weights"] == pytest.approx(saved, rel=0.15)


def test_the_plan_of_ppo_must_fit_with_its_critic() -> None:
    words = ["pipeline=ppo", "env=math"]
    config = parse_config(words)
    spec = describe_env(config)
    alone, beside = (rank_memory(config, spec, with_critic=critic) for critic in (False, True))
    assert alone is not None and beside is not None
    between = (alone.peak[1] + beside.peak[1]) / 2 / USABLE / GIB
    small = parse_config([*words, f"trainer.gpu_memory_gib={between}"])
    with pytest.raises(
        ConfigError, match=r"but trainer\.gpu_memory_gib=0\.\d+, of which"
    ) as refused:
        prepare(small, spec)
    for remedy in remedies(refused.value):
        changed = parse_config([*words, f"trainer.gpu_memory_gib={between}", *remedy.split()])
        prepare(
            changed, check_early(changed, named=[word.split("=")[0] for word in remedy.split()])
        )
    large = parse_config([*words, f"trainer.gpu_memory_gib={2 * between}"])
    assert prepare(large, spec).plan.needs.rank_memory == beside


def test_options_that_save_memory_apply_to_the_critic_too(folder: Any) -> None:
    actor = "actor_rollout_ref.actor"

    def of(*words: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        config = text(folder(QWEN), f"{actor}.micro_batch_tokens=16384", *words)
        table = rank_memory(config, QUESTIONS, with_critic=True)
        assert table is not None
        return dict(table.held), {name: dict(parts) for name, parts in table.phases}

    keeps = "actor_rollout_ref.model.gradient_checkpointing=false"
    held, phases = of()
    moments, update, step = "critic's Adam", "critic's update", "critic's optimiser's step"
    away, elsewhere = of(f"{actor}.offload_optimizer=true")
    assert moments not in away
    assert elsewhere[step]["Adam"] == held[moments]
    assert of(f"{actor}.fsdp_size=4")[0][moments] == 2 * held[moments]
    assert of(f"{actor}.reduce_once=true")[1][update]["gradients"] == 8 * phases[step]["gradients"]
    assert of(keeps)[1][update]["activations"] > 4 * phases[update]["activations"]


def test_models_of_unknown_size_are_named_as_not_computed(folder: Any, tmp_path: Path) -> None:
    (tmp_path / "experts").mkdir()
    (tmp_path / "experts/config.json").write_text('{"model_type": "qwen3_moe"}')
    words = ("reward.name=model", f"reward_model.path={tmp_path}/experts")
    config = text(folder(QWEN), *words, f"critic.path={tmp_path}/experts")
    table = rank_memory(config, QUESTIONS, with_critic=True)
    assert table is not None
    [(_, first), *_] = table_lines(table, gpu=EIGHTY_GB)
    assert first.endswith("; not computed: critic, reward model")
    [(topic, told)] = table_lines(None, gpu=EIGHTY_GB)
    assert topic == "a GPU" and told.startswith("its memory is not computed")


@pytest.mark.parametrize(("ranks", "share"), [(1, 1000), (8, 125)])
def test_ranks_share_the_weights_of_a_reward_model(folder: Any, ranks: int, share: int) -> None:
    path = folder(QWEN)
    (path / "model.safetensors").write_bytes(bytes(1000))
    words = ("reward.name=model", f"reward_model.path={path}", f"trainer.n_gpus_per_node={ranks}")
    table = rank_memory(text(path, *words), QUESTIONS)
    assert table is not None
    assert dict(table.held)["reward model"] == share
