"""LoRA: only adapters train, the base is the reference, saved weights are merged.

Slow: importing peft takes 15 seconds.
"""

import copy

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import move_adapters, tiny_causal_lm
from torch import nn

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import CheckpointError, ConfigError
from siirl.models.adapters import adapted_layers, add_adapters, narrow_frozen
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.pretrained import check_adapters
from siirl.models.weights import materialise
from siirl.params import OptimizerArguments
from siirl.params.model_args import LoraArguments

pytestmark = pytest.mark.slow
IDS, ORDER = torch.tensor([[5, 9, 2, 30, 7, 11]]), torch.arange(6)[None]
LORA = LoraArguments(rank=2, alpha=6.0)


def adapted(kind="tied", lora=LORA, *, moved=True):
    """A model with adapters.

    With `moved` they change its output (peft starts them at no change).
    """
    causal_lm = tiny_causal_lm(kind)
    add_adapters(causal_lm, lora)
    model = LanguageModel(causal_lm, lora=lora)
    if moved:
        move_adapters(model)
    return model


def test_new_adapters_change_nothing():
    torch.testing.assert_close(
        adapted(moved=False)(IDS, ORDER),
        LanguageModel(tiny_causal_lm("tied"))(IDS, ORDER),
        rtol=0,
        atol=0,
    )


def test_one_process_holds_the_model_below_adapters_in_the_type_of_the_passes():
    """Under autocast a product reads the same bits either way."""
    wide, narrow = adapted(), adapted()
    with torch.autocast("cpu", torch.bfloat16):
        expected = wide(IDS, ORDER)
    engine = TrainEngine(
        module=narrow,
        scorer=text_scorer,
        optim=OptimizerArguments(scheduler="constant"),
        compute_dtype=torch.bfloat16,
    ).initialize()
    types = {name: weight.dtype for name, weight in narrow.named_parameters()}
    assert {types.pop(name) for name in list(types) if ".lora_" in name} == {torch.float32}
    assert set(types.values()) == {torch.bfloat16}
    assert len(engine.optimizer.param_groups[0]["params"]) > 0
    with torch.autocast("cpu", torch.bfloat16):
        found = narrow(IDS, ORDER).float()
    assert float((found - expected).detach().norm() / expected.norm()) < 2e-2


def test_without_adapters_weights_keep_their_type():
    model = LanguageModel(tiny_causal_lm("tied"))
    model.requires_grad_(False)
    narrow_frozen(model, torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_a_seed_fixes_new_adapters_whatever_was_drawn_before():
    def first_matrices(seed):
        torch.randn(7)  # of another caller
        causal_lm = tiny_causal_lm("tied")
        before = torch.random.get_rng_state()
        add_adapters(causal_lm, LORA, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        return torch.cat(
            [
                weight.flatten()
                for name, weight in causal_lm.named_parameters()
                if ".lora_A." in name
            ]
        )

    one, again, other = (first_matrices(seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_only_adapters_are_trained():
    trained = [name for name, weight in adapted().named_parameters() if weight.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)


def test_without_its_adapter_it_is_the_model_below_and_then_itself_again():
    model, below = adapted(), LanguageModel(tiny_causal_lm("tied"))
    before = model(IDS, ORDER)
    with model.without_adapter():
        torch.testing.assert_close(model(IDS, ORDER), below(IDS, ORDER), rtol=0, atol=0)
    torch.testing.assert_close(model(IDS, ORDER), before, rtol=0, atol=0)
    assert float((before - below(IDS, ORDER)).detach().abs().max()) > 0.01
    assert all(
        weight.requires_grad for name, weight in model.named_parameters() if ".lora_" in name
    )


def test_a_copy_switches_its_own_adapters():
    model = adapted()
    other = copy.deepcopy(model)
    with other.without_adapter():
        torch.testing.assert_close(model(IDS, ORDER), adapted()(IDS, ORDER), rtol=0, atol=0)


def test_a_model_without_adapters_has_no_base_model():
    with (
        pytest.raises(ConfigError, match=r"set actor_rollout_ref\.model\.lora\.rank"),
        LanguageModel(tiny_causal_lm("tied")).without_adapter(),
    ):
        pass


def test_merging_is_by_alpha_over_rank():
    model = adapted(lora=LoraArguments(rank=2, alpha=6.0, target_modules=("q_proj",)))
    state, name = model.state_dict(), "model.layers.0.self_attn.q_proj"
    expected = (
        state[f"{name}.base_layer.weight"]
        + 3.0 * state[f"{name}.lora_B.default.weight"] @ state[f"{name}.lora_A.default.weight"]
    )
    exported = model.exported_weights()
    torch.testing.assert_close(exported[f"{name}.weight"], expected)
    assert list(exported) == list(tiny_causal_lm("tied").state_dict())


@pytest.mark.parametrize("kind", ["tied", "separate", "learnt positions"])
def test_a_saved_model_is_plain_and_has_the_same_output(kind, tmp_path):
    from transformers import AutoModelForCausalLM

    model = adapted(kind)
    model.save(tmp_path)
    plain = LanguageModel(AutoModelForCausalLM.from_pretrained(tmp_path).eval())
    torch.testing.assert_close(plain(IDS, ORDER), model(IDS, ORDER), rtol=1e-4, atol=1e-5)
    assert load_language_model(tmp_path).lora is None


def test_a_checkpoint_with_adapters_resumes_with_them(tmp_path):
    model = adapted()
    save_file(dict(model.named_parameters()), tmp_path / "model.safetensors")
    model.describe(tmp_path)
    other = load_language_model(tmp_path)
    assert other.lora == LORA
    torch.testing.assert_close(other(IDS, ORDER), model(IDS, ORDER), rtol=0, atol=0)
    with other.without_adapter():
        torch.testing.assert_close(
            other(IDS, ORDER), LanguageModel(tiny_causal_lm("tied"))(IDS, ORDER), rtol=0, atol=0
        )
    (tmp_path / "lora.json").write_text("{}}")
    with pytest.raises(CheckpointError, match=r"lora\.json"):
        load_language_model(tmp_path)


def test_a_checkpoint_with_adapters_is_read_by_parts(tmp_path):
    model = adapted()
    save_file(dict(model.named_parameters()), tmp_path / "model.safetensors")
    model.describe(tmp_path)
    planned = load_language_model(tmp_path, weights=False)
    assert all(w.is_meta for name, w in planned.named_parameters() if ".lora_" not in name)
    materialise(planned, torch.device("cpu"))
    assert planned.causal_lm.get_output_embeddings().weight is planned.model.embed_tokens.weight
    state = planned.state_dict()
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())


def test_loading_with_a_rank_adds_adapters_and_with_none_does_not(tmp_path):
    LanguageModel(tiny_causal_lm("tied")).save(tmp_path)
    assert load_language_model(tmp_path, lora=LORA).lora is LORA
    assert load_language_model(tmp_path, lora=LoraArguments()).lora is None


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("queries",), r"Unknown linear layer .*target_modules\) 'queries'.* Known: .*q_proj"),
        (("q_proj", "v_porj"), "'v_porj'. Did you mean 'v_proj'?"),
        (("embed_tokens",), "'embed_tokens'"),
        ((), r"target_modules=\[\] names no layer"),
    ],
)
def test_each_layer_that_is_named_must_be_there(targets, expected):
    with pytest.raises(ConfigError, match=expected):
        adapted_layers(tiny_causal_lm("tied"), LoraArguments(rank=2, target_modules=targets))


def test_layers_are_named_by_the_end_of_their_names():
    """Targets match whole parts of the path, like in peft."""
    model = nn.ModuleDict({"first": nn.ModuleDict({"q": nn.Linear(8, 4)}), "freq": nn.Linear(8, 8)})
    assert adapted_layers(model, LoraArguments(rank=2, target_modules=("q",))) == ("first.q",)
    assert adapted_layers(model, LoraArguments(rank=2, target_modules=("freq", "first.q"))) == (
        "first.q",
        "freq",
    )


def test_a_rank_above_the_smaller_side_of_a_layer_is_refused_with_both():
    model = nn.ModuleDict({"narrow": nn.Linear(4, 16), "wide": nn.Linear(16, 16)})
    assert adapted_layers(model, LoraArguments(rank=4), layers=("narrow", "wide")) == (
        "narrow",
        "wide",
    )
    with pytest.raises(
        ConfigError,
        match=r"rank=5 is more than layer narrow of 16 x 4 allows: lower it to 4, or .*=\[wide\]",
    ):
        adapted_layers(model, LoraArguments(rank=5), layers=("narrow", "wide"))
    assert adapted_layers(model, LoraArguments(rank=16, target_modules=("wide",))) == ("wide",)
    with pytest.raises(
        ConfigError,
        match=r"rank=17 is more than layer wide of 16 x 16 allows: lower it to 16\.",
    ):
        adapted_layers(model, LoraArguments(rank=17, target_modules=("wide",)))


def test_a_large_models_layers_are_checked_without_its_weights(tmp_path):
    LanguageModel(tiny_causal_lm("tied")).save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    check_adapters(tmp_path, LORA, trust_remote_code=False)
    with pytest.raises(ConfigError, match=r"rank=4000 is more than layer model\.layers\.0"):
        check_adapters(tmp_path, LoraArguments(rank=4000), trust_remote_code=False)


def test_a_model_without_a_layer_that_is_trained_is_refused():
    with pytest.raises(ConfigError, match="Sequential trains no linear layer"):
        adapted_layers(nn.Sequential(nn.ReLU()), LORA, layers=())
