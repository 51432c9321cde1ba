"""The memory table of a rank: shapes against published models, and presets against their GPUs."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from siirl.engine.critic.value_model import PolicyFeatures, ValueModel
from siirl.engine.critic.value_scorers import without_head
from siirl.errors import ConfigError, SiirlError
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.shapes import ENCODERS_7B, LLAMA_7B, QWEN_7B, openvla
from siirl.models.adapters import add_adapters, narrow_frozen
from siirl.models.language_model import LanguageModel
from siirl.params import SiiRLArguments
from siirl.params.env_spec import describe_env
from siirl.params.model_args import LoraArguments
from siirl.params.parser import parse_config
from siirl.params.sizes import GIB
from siirl.preflight.config_checks import config_problems
from siirl.preflight.early_checks import check_early
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.gpu_fit import USABLE, gpu_problems, table_lines
from siirl.preflight.machine import Gpu
from siirl.preflight.model_shapes import (
    NumberSizes,
    Stack,
    decoder_shape,
    openvla_shape,
    read_shape,
)
from siirl.preflight.prepare import prepare
from siirl.preflight.rank_memory import ROLLOUT_RANK, rank_memory
from siirl.preflight.unread import unread_problems
from tests.preflight.camera_spec import QUESTIONS, SPEC

LIBERO_10 = dataclasses.replace(SPEC, name="libero", max_episode_steps=520)
QWEN = {"model_type": "qwen2", **QWEN_7B}
# config.json of https://huggingface.co/Qwen/Qwen3-8B
QWEN3 = {
    **{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "head_dim": 128},
    **{"intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "tie_word_embeddings": False},
}
OPENVLA = {"text_config": LLAMA_7B, "timm_model_ids": list(ENCODERS_7B)}
EIGHTY_GB = Gpu(79 * GIB)


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    def write(config: dict[str, Any]) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def libero(folder: Path, *words: str, trainer: str) -> SiiRLArguments:
    return parse_config(
        [
            *("pipeline=embodied_srpo", "env=libero", "env.suite=10", "model=openvla_oft"),
            *(f"trainer={trainer}", f"actor_rollout_ref.model.path={folder}", *words),
        ]
    )


def text(folder: Path, *words: str) -> SiiRLArguments:
    return parse_config(
        [
            *("pipeline=grpo", "env=math", "model=causal_lm", "rollout=vllm", "trainer=gpus_text"),
            *(f"actor_rollout_ref.model.path={folder}", *words),
        ]
    )


def test_weights_of_qwen_7b_are_counted_exactly() -> None:
    """7.62 billion, as its card says (https://huggingface.co/Qwen/Qwen2.5-7B)."""
    shape = decoder_shape(QWEN)
    assert shape is not None
    assert shape.parameters == 7_615_616_512


def test_weights_of_qwen3_8b_are_counted_exactly() -> None:
    """8.19 billion, as its card says (https://huggingface.co/Qwen/Qwen3-8B)."""
    shape = decoder_shape(QWEN3)
    assert shape is not None
    assert shape.parameters == 8_190_735_360


def test_weights_of_openvla_7b_are_those_of_the_module(folder: Any) -> None:
    trial = cast("Trial", SimpleNamespace(on_gpu=True, device=torch.device("meta")))
    module = openvla(trial)
    shape = read_shape(folder(OPENVLA), images=1)
    assert shape is not None
    assert shape.parameters == sum(weight.numel() for weight in module.parameters())


def test_the_sizes_that_the_published_openvla_config_leaves_out_are_llama_7b(folder: Any) -> None:
    short = {**OPENVLA, "text_config": {"model_type": "llama", "vocab_size": 32064}}
    shape = read_shape(folder(short), images=1)
    assert shape is not None
    assert shape.parameters == 7_514_974_880


def test_adapters_of_openvla_are_about_as_many_as_published() -> None:
    """110.8 million at rank 32, the head and the encoders' last blocks included, which are not
    trained here.
    """
    shape = openvla_shape(OPENVLA, images=1)
    assert shape is not None
    assert shape.adapter_parameters(32) == pytest.approx(110.8e6, rel=0.03)


@pytest.mark.parametrize(
    ("dtype", "autocast", "computing"),
    [
        (torch.float32, True, NumberSizes(compute=2, residual=4)),
        (torch.float32, False, NumberSizes(compute=4, residual=4)),
        (torch.bfloat16, False, NumberSizes(compute=2, residual=2)),
    ],
)
@pytest.mark.parametrize(("kind", "key_value_heads"), [("qwen2", 2), ("qwen2", 4), ("qwen3", 2)])
def test_a_block_keeps_what_autograd_saves_in_it_within_fifteen_percent(
    dtype: torch.dtype, autocast: bool, computing: NumberSizes, kind: str, key_value_heads: int
) -> None:
    config = {
        **{"vocab_size": 64, "hidden_size": 64, "intermediate_size": 176},
        **{"num_attention_heads": 4, "num_key_value_heads": key_value_heads},
        **{"model_type": kind, "head_dim": 16},
    }
    places = 512
    saved = [
        saved_bytes({**config, "num_hidden_layers": blocks}, dtype, autocast, places=places)
        for blocks in (1, 2)
    ]
    shape = decoder_shape({**config, "num_hidden_layers": 2})
    assert shape is not None
    measured = (saved[1] - saved[0]) / places
    assert shape.decoder.block_bytes(computing) == pytest.approx(measured, rel=0.15)


def test_adapters_under_autocast_keep_an_input_of_each_product() -> None:
    """As counted in a block of a model with adapters whose frozen weights are in bfloat16."""
    config = {
        **{"vocab_size": 64, "hidden_size": 64, "intermediate_size": 176, "model_type": "qwen2"},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16},
    }
    places, lora = 512, LoraArguments(rank=1)
    saved = []
    for blocks in (1, 2):
        module = causal_lm({**config, "num_hidden_layers": blocks})
        add_adapters(module, lora)
        policy = LanguageModel(module, lora=lora)
        narrow_frozen(policy, torch.bfloat16)
        forward = functools.partial(policy.model, torch.zeros(1, places, dtype=torch.long))
        with torch.autocast("cpu", torch.bfloat16):
            saved.append(saved_by(policy, forward)[0])
    shape = decoder_shape({**config, "num_hidden_layers": 2})
    assert shape is not None
    measured = (saved[1] - saved[0]) / places
    found, without = (
        shape.decoder.block_bytes(NumberSizes(compute=2, residual=2, adapted=adapted))
        for adapted in (True, False)
    )
    assert found == pytest.approx(measured, rel=0.15)
    assert found - without == 3 * 2 * 64  # of k and v, and of up


def saved_bytes(config: dict[str, Any], dtype: torch.dtype, autocast: bool, *, places: int) -> int:
    """Bytes of the tensors that a forward pass saves, weights left out."""
    module = causal_lm(config).to(dtype).model
    tokens = torch.randint(config["vocab_size"], (1, places))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return saved_by(module, lambda: module(tokens))[0]


def causal_lm(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    configured = AutoConfig.for_model(**config, attn_implementation="sdpa")
    return AutoModelForCausalLM.from_config(configured)


def saved_by(module: torch.nn.Module, forward: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes of the tensors that a forward pass of `module` saves, weights left out; its output."""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, torch.Tensor] = {}  # keeps storages alive, so that addresses stay unique

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    size = sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in kept.items()
        if address not in weights
    )
    return size, output


def test_inputs_of_blocks_at_65_chunks_are_the_published_eleven_gib() -> None:
    """32 blocks of 4096 numbers in float32, for 350 places per chunk."""
    llama = Stack(blocks=32, width=4096, hidden=11008, query_width=4096, key_width=4096, gated=True)
    kept = 65 * 350 * 32 * llama.input_bytes(NumberSizes(compute=2, residual=4))
    assert kept / GIB == pytest.approx(11.1, abs=0.1)


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
    few = ("actor_rollout_ref.actor.ppo_mini_batch_size=1", f"{ROLLOUT}.n=4")
    row = 4024  # of the preset: prompt and response

    def update(tokens: int) -> dict[str, float]:
        budget = f"actor_rollout_ref.actor.micro_batch_tokens={tokens}"
        table = rank_memory(text(folder(QWEN), ONE_GPU, *few, budget), QUESTIONS)
        assert table is not None
        assert dict(dict(table.phases)["optimiser's step"])["gradients"] == 4 * 7_615_616_512
        return dict(dict(table.phases)["update"])

    assert "gradients" not in update(4 * row)
    assert update(4 * row - 1)["gradients"] == 4 * 7_615_616_512


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


@pytest.mark.parametrize(
    ("words", "sends", "held"),
    [
        ((), None, {"acting weights": 2 * 7_615_616_512}),
        (("trainer.max_staleness=1",), None, {"acting weights, twice": 4 * 7_615_616_512}),
        ((), False, {"acting weights, twice": 4 * 7_615_616_512}),  # one of several agents
    ],
)
def test_a_rank_that_only_rolls_out_holds_its_weights_twice_unless_new_ones_overwrite_them(
    folder: Any, words: Any, sends: Any, held: Any
) -> None:
    """bfloat16, 2 bytes, for each of Qwen's 7,615,616,512 weights."""
    settings = (
        *("dag.groups={rollout: 1, train: 7}", "trainer.n_gpus_per_node=8", *words),
        *("actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.actor.micro_batch_tokens=1536"),
    )
    config = text(folder(QWEN), *settings)
    table = rank_memory(config, QUESTIONS, kind=ROLLOUT_RANK, sends=sends)
    assert table
    assert dict(table.held) == held
    [(_, first), *_] = table_lines(table, gpu=EIGHTY_GB)
    assert first.startswith("of a rollout rank, which needs most: about")
    (problem,) = gpu_problems(config, QUESTIONS, gpu=Gpu(20 * GIB), sends=sends)
    assert "rank needs about" in str(problem)


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


@pytest.mark.parametrize(("trainer", "gib"), [("gpu_libero_one", 22.4), ("gpus_libero", 39.9)])
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
    assert phases["update"] == pytest.approx(33.2, abs=0.5)
    assert phases["rollout"] == pytest.approx(52.8, abs=0.5)
    assert gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB) == []


def test_all_weights_on_one_gpu_are_refused_and_the_remedies_fit(folder: Any) -> None:
    path = folder(OPENVLA)
    config = libero(path, "actor_rollout_ref.model.lora.rank=0", trainer="gpu_libero_one")
    (problem,) = gpu_problems(config, LIBERO_10, gpu=EIGHTY_GB)
    told = "These settings fit: trainer.n_gpus_per_node=8; or actor_rollout_ref.model.lora.rank=32"
    assert told in str(problem)
    for remedy in ("trainer.n_gpus_per_node=8", "actor_rollout_ref.model.lora.rank=32"):
        words = ("actor_rollout_ref.model.lora.rank=0", remedy)
        changed = libero(path, *words, trainer="gpu_libero_one")
        assert gpu_problems(changed, LIBERO_10, gpu=EIGHTY_GB) == []


def remedies(problem: SiirlError) -> list[str]:
    """The settings that a refusal names, as on the command line."""
    told = re.search(r"These settings fit: (.*)\.$", str(problem))
    assert told is not None, str(problem)
    return told[1].split("; or ")


def keys(config: SiiRLArguments, named: Collection[str]) -> list[SiirlError]:
    """What a machine with all packages and devices refuses."""
    return [
        *config_problems(config),
        *unread_problems(config, named=named),
        *environment_problems(config, QUESTIONS),
    ]


ROLLOUT, ADAPTERS = "actor_rollout_ref.rollout", "actor_rollout_ref.model.lora.rank=32"
FEW_TOKENS = "actor_rollout_ref.actor.micro_batch_tokens=4024"
FEWER_TOKENS = "actor_rollout_ref.actor.micro_batch_tokens=8192"  # half of the preset's
ONE_GPU = "trainer.n_gpus_per_node=1"
HF = (f"{ROLLOUT}.name=hf", f"{ROLLOUT}.mode=sync", ONE_GPU)
STREAM = (
    *("dag.groups={rollout: 4, train: 4}", "trainer.max_staleness=1", f"{ROLLOUT}.mode=null"),
    *(ADAPTERS, FEW_TOKENS),
)


@pytest.mark.parametrize(
    ("words", "gib", "told"),
    [
        ((*HF, ADAPTERS), 79, "env.envs_per_server=32"),
        (
            (*HF, ADAPTERS, "env.envs_per_server=1", "env.num_servers=256"),
            40,
            "env.num_servers=64",
        ),
        (
            HF,
            40,
            f"{FEWER_TOKENS} env.envs_per_server=64 trainer.n_gpus_per_node=8 "
            "actor_rollout_ref.actor.offload_optimizer=true",
        ),
        ((), 55, f"{ROLLOUT}.tensor_model_parallel_size=2"),
        (
            (ONE_GPU, ADAPTERS, f"{ROLLOUT}.mode=sync", f"{ROLLOUT}.kv_cache_gib=1", FEW_TOKENS),
            32,
            f"{ROLLOUT}.mode=async {ROLLOUT}.tensor_model_parallel_size=2",
        ),
        ((ONE_GPU, "cluster=local"), 79, "cluster.mode=ray trainer.n_gpus_per_node=8"),
        ((f"{ROLLOUT}.tensor_model_parallel_size=4",), 40, f"{ROLLOUT}.kv_cache_gib=14"),
        (
            ("dag.groups={rollout: 4, train: 4}", *HF[:1], "trainer.max_staleness=1"),
            79,
            "env.envs_per_server=64",
        ),
        (STREAM, 40, f"{ROLLOUT}.tensor_model_parallel_size=2"),
    ],
)
def test_every_remedy_of_a_refusal_is_accepted_and_fits(
    words: tuple[str, ...], gib: float, told: str, folder: Any
) -> None:
    path, gpu = folder(QWEN), Gpu(gib * GIB)
    config = text(path, *words)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=gpu, problems=keys)
    named = remedies(problem)
    assert told in named
    for remedy in named:
        applied = text(path, *words, *remedy.split())
        assert gpu_problems(applied, QUESTIONS, gpu=gpu) == []
        assert set(map(str, keys(applied, ()))) <= set(map(str, keys(config, ())))


def test_a_remedy_that_the_machine_refuses_is_not_named(folder: Any) -> None:
    def one_device(config: SiiRLArguments, named: Collection[str]) -> list[SiirlError]:
        return [ConfigError("one device")] if config.trainer.n_gpus_per_node > 1 else []

    config = text(folder(QWEN), ONE_GPU)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB, problems=one_device)
    assert remedies(problem) == [ADAPTERS]


def test_a_refusal_names_the_gpu_that_the_job_does_not_fit(folder: Any) -> None:
    config = libero(folder(OPENVLA), trainer="gpu_libero_one")
    gpu = Gpu(22.5 * GIB, "this machine's NVIDIA A10")
    (problem,) = gpu_problems(config, LIBERO_10, gpu=gpu)
    assert "but this machine's NVIDIA A10 has 22.5 GiB, of which the plan may use 90%" in str(
        problem
    )


def test_activations_that_do_not_fit_are_recomputed_or_cut(folder: Any) -> None:
    words = (
        "actor_rollout_ref.model.gradient_checkpointing=false",
        "actor_rollout_ref.actor.micro_batch_tokens=32768",
    )
    (problem,) = gpu_problems(text(folder(QWEN), *words), QUESTIONS, gpu=EIGHTY_GB)
    assert "in its update (activations" in str(problem)
    assert "These settings fit: actor_rollout_ref.model.gradient_checkpointing=true" in str(problem)
    assert "; or actor_rollout_ref.actor.micro_batch_tokens=4096" in str(problem)


def test_a_rollout_that_does_not_fit_gets_a_smaller_cache(folder: Any) -> None:
    config = text(folder(QWEN), "actor_rollout_ref.rollout.kv_cache_gib=60")
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB)
    assert "in its rollout (keys and values 60.0 GiB" in str(problem)
    assert "These settings fit: actor_rollout_ref.rollout.kv_cache_gib=30." in str(problem)


@pytest.mark.parametrize(("gib", "told"), [(79, 30), (38, 15), (28, 7), (24, 3)])
def test_of_the_halves_of_a_value_the_largest_that_fits_is_named(
    gib: int, told: int, folder: Any
) -> None:
    config = text(folder(QWEN), ADAPTERS, FEW_TOKENS, f"{ROLLOUT}.kv_cache_gib=60")
    (problem,) = gpu_problems(config, QUESTIONS, gpu=Gpu(gib * GIB))
    assert f"{ROLLOUT}.kv_cache_gib={told}" in remedies(problem)


def test_an_engine_that_does_not_sleep_holds_its_memory_during_the_update(folder: Any) -> None:
    config = text(folder(QWEN), "actor_rollout_ref.rollout.sleep=false")
    table = rank_memory(config, QUESTIONS)
    assert table is not None
    assert table.peak[0] == "update"
    assert dict(table.held)["keys and values"] == 28 * GIB


def test_a_model_that_fits_no_number_of_gpus_is_reported(folder: Any) -> None:
    (problem,) = gpu_problems(text(folder(QWEN)), QUESTIONS, gpu=Gpu(4 * GIB))
    assert "use a smaller model" in str(problem)


FEW_ROWS = f"{FEW_TOKENS} actor_rollout_ref.actor.offload_optimizer=true"
HF_STREAM = ("trainer.max_staleness=1", *HF[:1])


@pytest.mark.parametrize(
    ("words", "needing", "told"),
    [
        ((), "training rank", f"{FEW_ROWS} {ADAPTERS} makes a training rank"),
        ((ADAPTERS,), "rollout rank", f"{FEW_ROWS} makes a training rank"),
        (HF_STREAM, "rollout rank", "env.envs_per_server=1 env.num_servers=4 makes a rollout rank"),
    ],
)
def test_settings_that_do_not_help_the_rank_without_room_are_not_named(
    words: tuple[str, ...], needing: str, told: str, folder: Any
) -> None:
    config = text(folder(QWEN), "dag.groups={rollout: 4, train: 4}", *words)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=Gpu(8 * GIB))
    assert str(problem).startswith(f"A {needing} needs about")
    assert f"90%. Not even {told} fit: use a smaller model" in str(problem)


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


EXPERTS = {**QWEN, "model_type": "qwen3_moe"}
BILLION = 10**9


def sparse(folder: Path, **billions: float) -> Path:
    """Write weights of these names and sizes into `folder`, in bfloat16, without taking room."""
    entries, end = {}, 0
    for name, number in billions.items():
        count = int(number * BILLION)
        offsets = [end, end + 2 * count]
        entries[name] = {"dtype": "BF16", "shape": [count], "data_offsets": offsets}
        end += 2 * count
    header = json.dumps(entries).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with file.open("r+b") as stream:
        stream.truncate(8 + len(header) + end)
    return folder


def test_a_model_of_unknown_architecture_without_weights_has_no_table(folder: Any) -> None:
    config = text(folder(EXPERTS))
    assert rank_memory(config, QUESTIONS) is None
    assert gpu_problems(config, QUESTIONS, gpu=Gpu(1.0)) == []


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


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        ((ONE_GPU,), "rank", "trainer.n_gpus_per_node=8"),
        (HF, "rank", "trainer.n_gpus_per_node=8"),
        ((ONE_GPU, f"{ROLLOUT}.kv_cache_gib=1"), "rank", ADAPTERS),
        (("dag.groups={rollout: 7, train: 1}",), "training rank", ADAPTERS),
        (
            ("dag.groups={rollout: 1, train: 7}", f"{ROLLOUT}.kv_cache_gib=60"),
            "rollout rank",
            f"{ROLLOUT}.kv_cache_gib=30",
        ),
    ],
)
def test_a_lower_bound_above_the_gpu_is_refused_with_settings_that_lower_it(
    words: tuple[str, ...], kind: str, told: str, folder: Any
) -> None:
    path, gpu = sparse(folder(EXPERTS), weight=7), Gpu(64 * GIB)
    (problem,) = gpu_problems(text(path, *words), QUESTIONS, gpu=gpu, problems=keys)
    assert str(problem).startswith(f"A {kind} needs at least ")
    named = re.search(r"These settings may fit: (.*)\.$", str(problem))
    assert named is not None, str(problem)
    assert told in named[1]
    for remedy in named[1].split("; or "):
        applied = text(path, *words, *remedy.split())
        assert gpu_problems(applied, QUESTIONS, gpu=gpu) == []


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


@pytest.mark.parametrize("config", [QWEN, {**QWEN, "tie_word_embeddings": True}, QWEN3])
def test_weights_of_a_text_critic_are_those_of_its_value_model(config: dict[str, Any]) -> None:
    with torch.device("meta"):
        trunk = without_head(LanguageModel(causal_lm(config)))
        module = ValueModel(trunk=trunk, feature_size=config["hidden_size"], normalize_returns=True)
    shape = decoder_shape(config, critic=True)
    assert shape is not None
    assert shape.parameters == sum(weight.numel() for weight in module.parameters())


def test_weights_of_an_openvla_critic_are_those_of_its_value_model(folder: Any) -> None:
    trial = cast("Trial", SimpleNamespace(on_gpu=True, device=torch.device("meta")))
    trunk = PolicyFeatures(openvla(trial))
    path = folder(OPENVLA)
    (path / "action_head--1_checkpoint.pt").touch()  # it has no actions
    with torch.device("meta"):
        module = ValueModel(trunk=trunk, feature_size=trunk.feature_size, normalize_returns=True)
    shape = read_shape(path, images=1, critic=True)
    assert shape is not None
    assert shape.parameters == sum(weight.numel() for weight in module.parameters())


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


def test_a_critic_beside_a_policy_that_fits_alone_is_refused(folder: Any) -> None:
    """Qwen's 7.07 billion weights without head take 16 bytes each: 105 GiB beside adapters."""
    words = ("actor_rollout_ref.model.lora.rank=32", "trainer.n_gpus_per_node=1")
    config = text(folder(QWEN), *words)
    assert gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB) == []
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB, with_critic=True)
    assert "critic's Adam 52.7 GiB" in str(problem)


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


def test_a_critics_own_micro_batch_is_a_remedy(folder: Any) -> None:
    words = (
        *("actor_rollout_ref.actor.micro_batch_tokens=null", "critic.micro_batch_size=32"),
        "actor_rollout_ref.actor.micro_batch_size=1",
    )
    config = text(folder(QWEN), *words)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB, with_critic=True)
    assert "critic.micro_batch_size=1" in str(problem)


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


def test_without_a_gpu_nothing_is_refused(folder: Any) -> None:
    assert gpu_problems(text(folder(QWEN)), QUESTIONS, gpu=None) == []
