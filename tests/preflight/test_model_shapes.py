"""Shapes of models as the plan counts them, against their modules and published numbers."""

import functools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from siirl.engine.critic.value_model import PolicyFeatures, ValueModel
from siirl.engine.critic.value_scorers import without_head
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.shapes import openvla
from siirl.models.adapters import add_adapters, narrow_frozen
from siirl.models.language_model import LanguageModel
from siirl.params.model_args import LoraArguments
from siirl.params.sizes import GIB
from siirl.preflight.model_shapes import (
    NumberSizes,
    Stack,
    decoder_shape,
    openvla_shape,
    read_shape,
)
from tests.preflight.published_models import (
    OPENVLA,
    QWEN,
    QWEN3,
    causal_lm,
    saved_by,
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


def test_inputs_of_blocks_at_65_chunks_are_the_published_eleven_gib() -> None:
    """32 blocks of 4096 numbers in float32, for 350 places per chunk."""
    llama = Stack(blocks=32, width=4096, hidden=11008, query_width=4096, key_width=4096, gated=True)
    kept = 65 * 350 * 32 * llama.input_bytes(NumberSizes(compute=2, residual=4))
    assert kept / GIB == pytest.approx(11.1, abs=0.1)


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
