"""Loading by parts: the reads of each rank, the loaded weights, and refusals."""

import copy
import json
import shutil

import pytest
import torch
from ranks_at_work import run_on_ranks
from safetensors.torch import load_file, save_file
from tiny_language_models import language_model
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GPTJConfig

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.critic.value_scorers import without_head
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_sync import ActingModule, acting_copy
from siirl.errors import CheckpointError, ConfigError, InvariantError
from siirl.files.paths import find
from siirl.files.weight_files import WEIGHTS_FILE
from siirl.models.language_model import load_language_model
from siirl.models.pretrained import read_causal_lm, read_config
from siirl.models.stored_tensors import StoredTensors
from siirl.models.weights import load_weights, materialise
from siirl.params.model_args import LoraArguments

OPTIONS = {"tie_word_embeddings": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model with a tied head, as transformers saves it."""
    place = tmp_path_factory.mktemp("model")
    language_model(**OPTIONS).save(place)
    return place


def engine_of(ranks, folder):
    model = load_language_model(folder, weights=False)
    on_meta = all(weight.is_meta for weight in model.parameters())
    acting = acting_copy(model, torch.bfloat16)
    engine = TrainEngine(module=model, scorer=text_scorer, optim=None, ranks=ranks).initialize()
    return engine, acting, on_meta


def loaded_by_parts(ranks, folder):
    engine, acting, on_meta = engine_of(ranks, folder)
    [pair] = ActingModule(acting, trained=engine.module).take_weights(engine.weights_in_turn())
    sharded = all(isinstance(weight, DTensor) for weight in engine.module.parameters())
    ids = torch.tensor([[5, 9, 2, 30]])
    hidden = engine.module(ids, torch.arange(4)[None])
    return {
        "weights": {name: tensor.clone() for name, tensor in engine.upload_weights().items()},
        "hidden": hidden.detach(),
        "facts": (on_meta, sharded, pair.agrees),
        "shares prompts": engine.module.shares_prompts,
    }


def test_weights_that_each_rank_read_by_parts_are_those_of_the_file(folder):
    expected = load_language_model(folder)
    hidden = expected(torch.tensor([[5, 9, 2, 30]]), torch.arange(4)[None])
    for found in run_on_ranks(loaded_by_parts, folder, ranks=3):
        assert found["facts"] == (True, True, True)
        assert found["shares prompts"] == expected.shares_prompts
        state = expected.state_dict()
        assert found["weights"].keys() == state.keys()
        assert all(torch.equal(found["weights"][name], state[name]) for name in state)
        torch.testing.assert_close(found["hidden"], hidden)


def different_files(ranks, folders):
    engine_of(ranks, folders[ranks.rank])


def test_ranks_that_would_read_different_files_stop(folder, tmp_path):
    language_model(seed=7, **OPTIONS).save(tmp_path)
    with pytest.raises(AssertionError, match="exit codes"):
        run_on_ranks(different_files, [folder, tmp_path])


def test_on_one_rank_weights_are_read_into_their_place(folder):
    model = load_language_model(folder, weights=False)
    assert all(weight.is_meta for weight in model.parameters())
    materialise(model, torch.device("cpu"))
    expected = load_language_model(folder).state_dict()
    assert all(torch.equal(expected[name], t) for name, t in model.state_dict().items())
    assert model.causal_lm.get_output_embeddings().weight is model.model.embed_tokens.weight


@pytest.mark.slow  # peft's import takes 15 seconds
def test_new_adapters_are_drawn_and_the_weights_below_them_read(folder):
    lora = LoraArguments(rank=2)
    planned, whole = (
        load_language_model(folder, lora=lora, seed=3, weights=weights) for weights in (False, True)
    )
    materialise(planned, torch.device("cpu"))
    expected = whole.state_dict()
    assert any(".lora_A." in name for name in expected)
    assert all(torch.equal(expected[name], t) for name, t in planned.state_dict().items())


def without_prefix(place):
    """A decoder whose weights are named as those of its base model."""
    language_model(**OPTIONS).save(place)
    file = place / WEIGHTS_FILE
    weights = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    return place


def under_old_names(place):
    """A model that takes pictures; transformers saves it under the names that it was published
    with.
    """
    shutil.copytree("assets/tiny_vlm", place, dirs_exist_ok=True)
    load_language_model(place).save(place)
    assert any(name.startswith("visual.") for name in load_file(place / WEIGHTS_FILE))
    return place


@pytest.mark.parametrize("write", [without_prefix, under_old_names])
def test_weights_that_transformers_renames_are_read_by_parts(write, tmp_path):
    place = str(write(tmp_path))
    config = read_config(place, trust_remote_code=False)
    expected = read_causal_lm(place, config, dtype=torch.float32, trust_remote_code=False)
    model = load_language_model(place, weights=False)
    assert all(weight.is_meta for weight in model.parameters())
    materialise(model, torch.device("cpu"))
    assert_equal(model, expected)


def assert_equal(model, expected):
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    assert all(torch.equal(state[name], t) for name, t in expected.state_dict().items())


def test_buffers_of_a_model_in_16_bits_are_those_of_transformers(tmp_path):
    """They are computed in float32, whatever the type of the weights is."""
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 8, "vocab_size": 64}
    config = GPTJConfig(**sizes, bos_token_id=1, eos_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    options = {"dtype": torch.bfloat16}
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    model = load_language_model(tmp_path, weights=False, **options)
    assert model.planned is not None
    for found, buffer in zip(model.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(found, buffer, rtol=0, atol=0)


def test_weights_that_transformers_computes_are_read_whole(tmp_path):
    experts = {"moe_intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1}
    written = language_model("Qwen3Moe", **experts)
    written.save(tmp_path)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    assert stored.keys() != written.state_dict().keys()  # each expert has tensors of its own there
    model = load_language_model(tmp_path, weights=False)
    assert_equal(model, written)


def in_fp8(folder, place, *, described=True):
    """The model of `folder` as those on the Hub in blocks of FP8 are, with a scale for each."""
    shutil.copytree(folder, place, dirs_exist_ok=True)
    stored = load_file(place / WEIGHTS_FILE)
    for name in [name for name in stored if name.endswith("proj.weight")]:
        scale = stored[name].abs().max() / 448
        stored[name] = (stored[name] / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.reshape(1, 1)
    save_file(stored, place / WEIGHTS_FILE, metadata={"format": "pt"})
    if described:
        config = json.loads((place / "config.json").read_text())
        config["quantization_config"] = {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        }
        (place / "config.json").write_text(json.dumps(config))
    return place


def test_weights_in_fp8_are_read_with_their_scales(folder, tmp_path):
    place = in_fp8(folder, tmp_path)
    expected = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    for weights in (True, False):
        model = load_language_model(place, weights=weights)
        assert_equal(model, expected)
        assert not hasattr(model.config, "quantization_config")  # nor has its checkpoint
    stored, written = load_file(place / WEIGHTS_FILE), load_language_model(folder).state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(model.state_dict()[name], written[name], rtol=0.07, atol=0.01)
    assert stored[name].float().std() > 50 * written[name].std()


def test_a_model_read_from_fp8_is_saved_in_floating_point(folder, tmp_path):
    model = load_language_model(in_fp8(folder, tmp_path / "read"))
    for saved in (model, copy.deepcopy(model)):
        saved.save(tmp_path / "saved")
        assert load_file(tmp_path / "saved" / WEIGHTS_FILE).keys() == written_names(folder)
        assert_equal(load_language_model(tmp_path / "saved"), model)
        assert_equal(AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), model)


def test_a_model_of_pictures_whose_text_is_in_fp8_is_saved_in_floating_point(tmp_path):
    """Its config.json describes the quantisation among the settings of its text."""
    folder = find("assets/tiny_vlm")
    place = in_fp8(folder, tmp_path / "read")
    config = json.loads((place / "config.json").read_text())
    config["text_config"]["quantization_config"] = config.pop("quantization_config")
    (place / "config.json").write_text(json.dumps(config))
    model = load_language_model(place)
    model.save(tmp_path / "saved")
    assert load_file(tmp_path / "saved" / WEIGHTS_FILE).keys() == written_names(folder)
    assert "quantization_config" not in (tmp_path / "saved" / "config.json").read_text()
    assert_equal(AutoModelForImageTextToText.from_pretrained(tmp_path / "saved"), model)


def written_names(folder):
    return load_file(folder / WEIGHTS_FILE).keys()


def test_scales_in_fp8_under_another_name_are_not_ignored(folder, tmp_path):
    """As AutoFP8 writes them: transformers would take the weights without their scales."""
    place = in_fp8(folder, tmp_path)
    stored = load_file(place / WEIGHTS_FILE)
    named = {name.replace("_scale_inv", "_scale"): tensor for name, tensor in stored.items()}
    save_file(named, place / WEIGHTS_FILE, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"does not apply the scale model\.layers\.0.*_scale of"):
        load_language_model(place)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_in_mxfp4_are_read_with_their_scales(tmp_path, dtype):
    """The layout of gpt-oss: two numbers a byte, the first in its low half, and 127 plus an exponent
    for each 32 of them.
    """
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    language_model("GptOss", **experts).save(tmp_path / "plain")
    stored = load_file(tmp_path / "plain" / WEIGHTS_FILE)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    for each in [each for each in stored if each.endswith("experts.gate_up_proj")]:
        assert stored.pop(each).shape == (2, 32, 96)
        blocks = torch.zeros(2, 96, 1, 16, dtype=torch.uint8)
        scales = torch.full((2, 96, 1), 127, dtype=torch.uint8)
        if each == name:
            blocks[0, 3, 0, 5] = 0b1010_0111  # 6, then -1
            scales[0, 3, 0] -= 2
        stored |= {f"{each}_blocks": blocks, f"{each}_scales": scales}
    shutil.copytree(tmp_path / "plain", tmp_path / "read")
    save_file(stored, tmp_path / "read" / WEIGHTS_FILE, metadata={"format": "pt"})
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "read" / "config.json").write_text(json.dumps(config))
    model = load_language_model(tmp_path / "read", dtype=dtype)
    expected = torch.zeros(2, 32, 96)
    expected[0, 10:12, 3] = torch.tensor([6 / 4, -1 / 4])
    assert torch.equal(model.state_dict()[name].float(), expected)
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    model.save(tmp_path / "saved")
    assert load_file(tmp_path / "saved" / WEIGHTS_FILE).keys() == written_names(tmp_path / "plain")
    assert_equal(AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), model)


def test_weights_in_fp8_of_which_config_json_says_nothing_are_refused(folder, tmp_path):
    place = in_fp8(folder, tmp_path, described=False)
    with pytest.raises(CheckpointError, match=r"proj\.weight as torch\.float8_e4m3fn.*bfloat16"):
        load_language_model(place, weights=False)


def test_integers_in_place_of_weights_are_refused(tmp_path):
    module = nn.Linear(2, 3)
    save_file(
        {"weight": torch.ones(3, 2).char(), "bias": torch.ones(3)}, tmp_path / "w.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"holds weight as torch\.int8: it is quantised"):
        load_weights(module, tmp_path / "w.safetensors")


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "compressed-tensors", "modelopt"])
def test_a_model_that_stays_quantised_is_refused_by_its_config_json(folder, tmp_path, method):
    """No package that reads it is asked for, as another one would not help."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"is quantised \({method}\).*before quantisation"):
        load_language_model(tmp_path)


def test_a_head_that_differs_from_the_embedding_is_not_tied_to_it(folder, tmp_path):
    """As in transformers, whatever config.json says."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    words = stored["model.embed_tokens.weight"]
    head = words.clone()
    head[-1, -1] += 1.0
    stored["lm_head.weight"] = head
    save_file(stored, tmp_path / WEIGHTS_FILE, metadata={"format": "pt"})
    for weights in (True, False):
        model = load_language_model(tmp_path, weights=weights)
        assert torch.equal(model.output_weight, head)
        assert torch.equal(model.model.embed_tokens.weight, words)


def test_a_critic_of_a_tied_model_reads_its_embedding_where_only_the_head_is_stored(
    folder, tmp_path
):
    """transformers reads either name, and a critic has no head."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    words = stored["lm_head.weight"] = stored.pop("model.embed_tokens.weight")
    save_file(stored, tmp_path / WEIGHTS_FILE, metadata={"format": "pt"})
    critic = without_head(load_language_model(tmp_path, weights=False))
    materialise(critic, torch.device("cpu"))
    assert torch.equal(critic.model.embed_tokens.weight, words)


def test_weights_that_no_file_gives_a_value_stop_the_start(folder):
    model = load_language_model(folder, weights=False)
    model.extra = nn.Linear(2, 3, device="meta")
    with pytest.raises(InvariantError, match=r"2 weights.*'extra\.bias'.*uninitialised"):
        materialise(model, torch.device("cpu"))


def test_a_stored_type_becomes_that_of_the_module(tmp_path):
    stored = {"weight": torch.randn(3, 2).bfloat16(), "bias": torch.randn(3).half()}
    save_file(stored, tmp_path / "w.safetensors")
    module = nn.Linear(2, 3)
    load_weights(module, tmp_path / "w.safetensors")
    assert module.weight.dtype == torch.float32
    assert torch.equal(module.weight, stored["weight"].float())
    assert torch.equal(module.bias, stored["bias"].float())


def test_merged_adapters_are_rounded_once(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight, down, up = (
        torch.randn(shape, generator=generator) for shape in ((32, 24), (2, 24), (32, 2))
    )
    stored = {"base_layer.weight": weight, "lora_A.default.weight": down}
    stored |= {"lora_B.default.weight": up}
    save_file({f"0.{name}": tensor for name, tensor in stored.items()}, tmp_path / WEIGHTS_FILE)
    (tmp_path / "lora.json").write_text(json.dumps(vars(LoraArguments(rank=2, alpha=6.0))))
    module = nn.Sequential(nn.Linear(24, 32, bias=False)).bfloat16()
    load_weights(module, tmp_path)
    assert torch.equal(module[0].weight, (weight + up @ down * 3.0).bfloat16())


def test_a_tensor_larger_than_the_buffer_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("siirl.models.stored_tensors.BUFFER_BYTES", 40)
    stored = {"weight": torch.randn(7, 5)}
    save_file(stored, tmp_path / "w.safetensors")
    found = StoredTensors([tmp_path / "w.safetensors"]).whole("weight")
    assert torch.equal(found, stored["weight"])


def test_a_single_rank_without_a_group_reads_everything(folder):
    engine, _, _ = engine_of(OneProcess(), folder)
    expected = load_language_model(folder).state_dict()
    assert all(torch.equal(expected[name], t) for name, t in engine.upload_weights().items())
