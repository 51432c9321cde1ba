"""Language models in training: hidden states, packed rows, names, copies, folders, refusals."""

import copy
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from tiny_models import CONFIGS, SIZES, spread_causal_lm, tiny_causal_lm
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    BloomConfig,
    DeepseekV4Config,
    FalconConfig,
    Gemma2Config,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    MptConfig,
    OPTConfig,
    Phi3Config,
    Qwen3Config,
    RwkvConfig,
)

from siirl.errors import CheckpointError, ConfigError, InvariantError, MissingAssetError
from siirl.models.language_model import LanguageModel, load_language_model, recompute_activations
from siirl.models.pretrained import damage_named
from siirl.models.weights import materialise

USABLE = ("tied", "separate", "learnt positions", "biased head")
IDS = torch.tensor([[5, 9, 2, 30, 7, 11]])
ORDER = torch.arange(6)[None]
SIDE_BY_SIDE = torch.tensor([[0, 1, 0, 0, 1, 2]])  # rows of two, one and three tokens


@pytest.fixture
def saved(tmp_path):
    """A folder with a tied model."""
    LanguageModel(tiny_causal_lm("tied")).save(tmp_path / "model")
    return tmp_path / "model"


def gradients(model):
    """Gradients of the sum of squared hidden states, by name."""
    model.zero_grad()
    model(IDS, ORDER).square().sum().backward()
    return {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


@pytest.mark.parametrize("kind", USABLE)
def test_hidden_states_times_the_output_weight_are_the_models_own_logits(kind):
    causal_lm = tiny_causal_lm(kind)
    model = LanguageModel(causal_lm)
    product = model(IDS, ORDER) @ model.output_weight.T
    if kind == "biased head":
        product = product + model.output_bias
    torch.testing.assert_close(product, causal_lm(input_ids=IDS).logits)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", USABLE)
def test_rows_side_by_side_do_not_affect_each_other(kind, attention):
    causal_lm = tiny_causal_lm(kind)
    causal_lm.set_attn_implementation(attention)
    model = LanguageModel(causal_lm)
    together = model(IDS, SIDE_BY_SIDE)
    alone = [
        model(IDS[:, start:end], torch.arange(end - start)[None])
        for start, end in ((0, 2), (2, 3), (3, 6))
    ]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


FALCON = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
WITHOUT_POSITIONS = {
    "OPT": OPTConfig(**SIZES, ffn_dim=24, word_embed_proj_dim=16),
    "Falcon": FalconConfig(**FALCON),
    "Falcon's new decoder": FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=1),
    "gpt-oss with windows": GptOssConfig(**SIZES, **EXPERTS, sliding_window=2),
    "MPT with ALiBi": MptConfig(vocab_size=40, d_model=16, n_layers=2, n_heads=2, max_seq_len=64),
}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("kind", WITHOUT_POSITIONS)
def test_rows_are_kept_apart_by_a_mask_where_a_model_makes_none_from_positions(
    kind, weights, tmp_path
):
    spread_causal_lm(WITHOUT_POSITIONS[kind]).save_pretrained(tmp_path)
    model = load_language_model(tmp_path, weights=weights)
    assert model.needs_mask
    materialise(model, torch.device("cpu"))
    together = model(IDS, SIDE_BY_SIDE)
    alone = [
        model.causal_lm.base_model(IDS[:, start:end]).last_hidden_state
        for start, end in ((0, 2), (2, 3), (3, 6))
    ]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


def test_a_model_that_keeps_rows_apart_by_itself_gets_no_mask(saved):
    assert not load_language_model(saved).needs_mask


def test_weights_have_the_names_of_transformers():
    causal_lm = tiny_causal_lm("tied")
    model = LanguageModel(causal_lm)
    assert list(model.state_dict()) == list(causal_lm.state_dict())
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in causal_lm.named_parameters()
    ]


def test_a_copy_has_separate_weights():
    model = LanguageModel(tiny_causal_lm("tied"))
    recompute_activations(model)
    before = model(IDS, ORDER)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    assert torch.equal(model(IDS, ORDER), before)
    assert not other(IDS, ORDER).any()
    assert other.causal_lm.get_input_embeddings().weight is other.output_weight


@pytest.mark.parametrize(("kind", "length"), [("tied", 64), ("learnt positions", 32)])
def test_the_length_is_the_architectures(kind, length):
    assert LanguageModel(tiny_causal_lm(kind)).max_length == length


def test_a_context_that_longrope_extends_ends_where_frequencies_change():
    """Beyond, a row would change the hidden states of the rows packed with it."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [8.0] * 4,
        "original_max_position_embeddings": 8,
    }
    config = Phi3Config(**SIZES, original_max_position_embeddings=8, rope_parameters=rope)
    model = LanguageModel(spread_causal_lm(config))
    assert model.max_length == 8
    short = torch.arange(3)
    alone = model(torch.arange(1, 4)[None], short[None])[0]
    for length, unchanged in ((8, True), (9, False)):
        positions = torch.cat([short, torch.arange(length)])[None]
        together = model(torch.arange(1, 4 + length)[None], positions)[0, :3]
        assert torch.allclose(together, alone, atol=1e-4) == unchanged


def test_activations_that_are_computed_again_give_the_same_gradient():
    plain, recomputing = (
        LanguageModel(tiny_causal_lm("tied")),
        LanguageModel(tiny_causal_lm("tied")),
    )
    recompute_activations(recomputing)
    passes = []
    recomputing.model.layers[0].self_attn.register_forward_hook(lambda *_: passes.append(1))
    expected, found = gradients(plain), gradients(recomputing)
    assert len(passes) == 2  # in the forward pass, and again in the backward pass
    torch.testing.assert_close(expected, found, rtol=0, atol=0)


def test_nothing_is_computed_again_without_a_gradient():
    model = LanguageModel(tiny_causal_lm("tied"))
    recompute_activations(model)
    with torch.no_grad():
        assert model(IDS, ORDER).grad_fn is None


# Folders


@pytest.mark.parametrize("kind", USABLE)
def test_a_saved_model_reads_back_equal(kind, tmp_path):
    model = LanguageModel(tiny_causal_lm(kind))
    model.save(tmp_path)
    other = load_language_model(tmp_path)
    torch.testing.assert_close(other(IDS, ORDER), model(IDS, ORDER), rtol=0, atol=0)
    assert not other.training


def test_a_tied_weight_is_written_once(saved):
    from safetensors.torch import load_file

    assert "lm_head.weight" not in load_file(saved / "model.safetensors")


def test_whole_weights_of_elsewhere_can_be_saved_in_its_place(tmp_path):
    model, other = (
        LanguageModel(tiny_causal_lm("tied")),
        LanguageModel(tiny_causal_lm("tied", seed=1)),
    )
    model.save(tmp_path, state=other.state_dict())
    torch.testing.assert_close(load_language_model(tmp_path)(IDS, ORDER), other(IDS, ORDER))


def test_weights_under_this_modules_names_and_its_description_make_a_folder_for_transformers(
    tmp_path,
):
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = LanguageModel(tiny_causal_lm("tied"))
    # content of a checkpoint: a tied weight once
    save_file(dict(model.named_parameters()), tmp_path / "model.safetensors")
    model.describe(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(read(input_ids=IDS).logits, model.causal_lm(input_ids=IDS).logits)


def test_weights_are_read_in_the_requested_type(saved):
    assert {
        weight.dtype for weight in load_language_model(saved, dtype=torch.bfloat16).parameters()
    } == {torch.bfloat16}


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./no_such_folder", "assets/no_such_model", "a/b/c"]
)
def test_a_missing_folder_is_refused_with_the_way_to_make_one(path):
    with pytest.raises(
        MissingAssetError, match=r"there is no such folder.*siirl warm-start env=math"
    ):
        load_language_model(path)


def test_a_file_in_place_of_a_folder_is_reported(saved):
    with pytest.raises(MissingAssetError, match="is a file; give the folder"):
        load_language_model(saved / "config.json")


def test_an_unknown_hub_id_is_reported():
    with pytest.raises(MissingAssetError, match="nobody/no-such-model"):
        load_language_model("nobody/no-such-model")


def test_a_folder_without_config_or_weights_is_reported(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(MissingAssetError, match="no readable weights"):
        load_language_model(saved)
    (saved / "config.json").unlink()
    with pytest.raises(MissingAssetError, match=r"holds no config\.json"):
        load_language_model(saved)


def test_a_truncated_weight_file_is_reported(saved):
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        CheckpointError,
        match=r"path=.*model\.safetensors \(\d+ bytes\) is not a complete safetensors file: "
        r".* again\.$",
    ):
        load_language_model(saved)


def test_a_cut_file_of_several_in_the_hubs_cache_is_named_and_what_is_to_be_deleted(tmp_path):
    """The cache stores contents under their hash, and links to them under their names."""
    blobs, snapshot = (
        tmp_path / "models--org--model" / "blobs",
        tmp_path / "models--org--model" / "snapshots" / "0123",
    )
    blobs.mkdir(parents=True)
    tiny_causal_lm("tied").save_pretrained(snapshot, max_shard_size="4KB")
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    *_, last = sorted(snapshot.glob("model-*.safetensors"))
    last.resolve().write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as refused:
        load_language_model(snapshot)
    assert f"{last} (" in str(refused.value)
    assert f"delete {last.resolve()}, and it is downloaded again" in str(refused.value)


def test_adapters_of_peft_beside_the_weights_are_refused(saved):
    (saved / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(
        CheckpointError, match=r"adapter_config\.json.*merge_and_unload.*or remove the file"
    ):
        load_language_model(saved)


def test_missing_weights_are_not_drawn_at_random(saved):
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError,
        match=r"lacks 1 weights of a Qwen3ForCausalLM, the first of them 'model\.norm\.weight'",
    ):
        load_language_model(saved)


def test_weights_of_another_size_are_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(CheckpointError, match="another model"):
        load_language_model(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", ".."),
        ("num_attention_heads", 0),
        ("hidden_size", -1),
        ("layer_types", [""]),
        ("pad_token_id", 10**6),
        ("hidden_act", None),
    ],
)
def test_an_unusable_model_configuration_is_refused(saved, key, value):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises((CheckpointError, ConfigError), match=re.escape(str(saved))):
        load_language_model(saved)


def test_a_pipe_instead_of_a_file_is_refused_without_waiting(saved):
    (saved / "model.safetensors").unlink()
    os.mkfifo(saved / "model.safetensors")
    with pytest.raises(MissingAssetError, match=r"model\.safetensors is not a readable file"):
        load_language_model(saved)


@pytest.mark.parametrize(
    ("description", "told"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "it is BertForMaskedLM"),
        (
            {"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]},
            "choose a model whose config.json names Qwen3ForCausalLM",
        ),
        ({"model_type": "vit"}, "it is vit"),
        ({"model_type": "no_such_type"}, "no model type known to transformers"),
    ],
)
def test_another_model_than_a_causal_language_model_is_refused(tmp_path, description, told):
    (tmp_path / "config.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match=told):
        load_language_model(tmp_path)


def test_an_architecture_unknown_to_training_is_refused(tmp_path):
    tiny_causal_lm("capped logits").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="they are scaled or capped"):
        load_language_model(tmp_path)


PLANNED = {
    "logits capped at 30": (Gemma2Config(**SIZES), "they are scaled or capped"),
    "logits capped at 50": (
        Gemma2Config(**SIZES, final_logit_softcapping=50.0),
        "they are scaled or capped",
    ),
    "no decoder apart from the head": (
        Llama4TextConfig(**SIZES, **EXPERTS, intermediate_size_mlp=24),
        "gives no hidden states without logits",
    ),
}
UNPACKED = {
    "short convolutions": Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
    "state spaces": BambaConfig(**SIZES, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4),
    "positions from the padding": BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2),
    "positions from the padding, beside position_ids": FalconConfig(**FALCON, alibi=True),
    "compressed chunks": DeepseekV4Config(**SIZES, **EXPERTS, moe_intermediate_size=8),
    "no small form": RwkvConfig(vocab_size=40, hidden_size=16),
}


@pytest.mark.parametrize("kind", PLANNED)
def test_an_architecture_is_refused_before_its_weights_are_read(kind, tmp_path):
    """transformers' first weights are so small that caps and convolutions hardly change a number."""
    config, told = PLANNED[kind]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=told):
        load_language_model(tmp_path, weights=False)


@pytest.mark.parametrize("kind", UNPACKED)
def test_whether_rows_are_packed_is_known_before_weights_are_read(kind, tmp_path):
    """transformers' first weights are so small that convolutions hardly change a number."""
    AutoModelForCausalLM.from_config(UNPACKED[kind]).save_pretrained(tmp_path)
    model = load_language_model(tmp_path, weights=False)
    assert not model.packs
    assert not model.shares_prompts


@pytest.mark.parametrize("backwards", [False, True])
def test_a_model_whose_rows_see_each_other_is_not_packed_and_refused_if_it_sees_later_tokens(
    backwards, saved, monkeypatch
):
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    forward = Qwen3Attention.forward

    def heedless(self, hidden_states, **named):  # like a recurrence over all rows
        sums = hidden_states.flip(1).cumsum(1).flip(1) if backwards else hidden_states.cumsum(1)
        return forward(self, sums, **named)

    monkeypatch.setattr(Qwen3Attention, "forward", heedless)
    if backwards:
        with pytest.raises(ConfigError, match="tokens see later ones"):
            load_language_model(saved)
    else:
        assert not load_language_model(saved).packs


def test_spread_weights_are_not_read_where_they_are_spread(tmp_path):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        model = LanguageModel(tiny_causal_lm("tied"))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(InvariantError, match=r"TrainEngine\.upload_weights"):
            _ = model.output_weight
        with torch.no_grad():
            model(IDS, ORDER)
        assert model.output_weight.shape == (40, 16)
    finally:
        distributed.destroy_process_group()


def test_every_kind_has_a_case_above():
    assert set(CONFIGS) == {*USABLE, "capped logits", "recurrent"}


@pytest.mark.parametrize("kind", USABLE)
def test_a_loaded_model_shares_prompts_between_answers_where_it_can(kind, tmp_path):
    LanguageModel(tiny_causal_lm(kind)).save(tmp_path)
    assert load_language_model(tmp_path).shares_prompts


def test_a_model_with_a_sliding_window_shares_no_prompts(tmp_path):
    """A custom mask would replace that of the window."""
    sliding = Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    LanguageModel(AutoModelForCausalLM.from_config(sliding).eval()).save(tmp_path)
    assert not load_language_model(tmp_path).shares_prompts


def test_a_model_that_ignores_the_mask_shares_no_prompts(saved, monkeypatch):
    heedful = LanguageModel.forward
    monkeypatch.setattr(
        LanguageModel,
        "forward",
        lambda self, ids, positions, mask=None: heedful(self, ids, positions),
    )
    assert not load_language_model(saved).shares_prompts


@pytest.mark.parametrize(
    ("config", "shares"),
    [
        (Qwen3Config(**SIZES), True),
        (CONFIGS["learnt positions"](), False),  # reads the number of axes of its mask
        (FalconConfig(**FALCON), False),  # calls torch's function by itself
    ],
    ids=["Qwen3", "GPT-2", "Falcon"],
)
def test_on_a_gpu_a_model_shares_prompts_if_it_takes_block_masks(
    config, shares, tmp_path, monkeypatch
):
    spread_causal_lm(config).save_pretrained(tmp_path)
    assert load_language_model(tmp_path).shares_prompts  # a CPU uses dense masks
    monkeypatch.setattr("siirl.models.architecture_check.uses_blocks", lambda: True)
    model = load_language_model(tmp_path)
    assert model.shares_prompts == shares
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("lack", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_lack_of_memory_is_not_reported_as_damaged_files(lack):
    with pytest.raises(type(lack)), damage_named("folder", "config.json"):
        raise lack


def test_other_errors_of_the_library_name_the_files():
    sentence = r"folder: config\.json cannot be loaded: KeyError"
    with pytest.raises(CheckpointError, match=sentence), damage_named("folder", "config.json"):
        raise KeyError("model_type")


def test_a_package_that_a_model_lacks_is_not_reported_as_damaged_files():
    sentence = r"folder needs a package that cannot be imported: No module named 'einops'\. Install"
    with pytest.raises(MissingAssetError, match=sentence), damage_named("folder", "config.json"):
        raise ModuleNotFoundError("No module named 'einops'", name="einops")


def test_models_are_read_by_parts_without_accelerate():
    """Neither transformers nor the GPU checks require it."""
    load = (
        "import sys; sys.modules['accelerate'] = None; "
        "from siirl.models.language_model import load_language_model as model; "
        "from siirl.models import openvla_checkpoint, pi_checkpoint, smolvla_checkpoint; "
        "print(model('assets/tiny_lm', weights=False).planned is not None)"
    )
    words = [sys.executable, "-c", load]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_process_with_a_language_model_does_without_scikit_learn_and_scipy():
    """Transformers imports them for decoding and losses that nothing here asks for."""
    load = (
        "import sys; from siirl.models.chat import load_chat_tokenizer as tokenizer; "
        "from siirl.models.language_model import load_language_model as model; "
        "tokenizer('assets/tiny_lm'); model('assets/tiny_lm'); print(*{*sys.argv} & {*sys.modules})"
    )
    words = [sys.executable, "-c", load, "sklearn", "scipy.optimize", "transformers"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "transformers\n"
