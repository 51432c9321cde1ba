"""OpenVLA's first form: the tokens and log-probs of transformers' own generation."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from siirl.algos.token_by_token import TokenByToken
from siirl.errors import CheckpointError, ConfigError
from siirl.models import save_policy
from siirl.models.policy_loader import build_policy
from tests.models.test_openvla_oft import observed, spec_of
from tests.models.tiny_openvla import ACTION, CONFIG, know_tiny_encoders, write_checkpoint

FIRST, BINS = 32064 - 64 - 256, 256
QUESTIONS = ("open drawer", "pick up the black bowl and place it on the plate", "pick up bowl")


@pytest.fixture(autouse=True)
def tiny_encoders(monkeypatch):
    know_tiny_encoders(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint")


def policy_of(folder, **options):
    options = {"recompute": False, **options}
    return build_policy("openvla", path=str(folder), spec=spec_of(), seed=0, options=options)


def generated(policy, folder, *, pixel_values, proprioception, instruction_ids):
    """Greedy tokens of one observation and their log-probs, by transformers."""
    weights = {
        name: tensor.float()
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    prefix = "language_model."
    llama = LlamaForCausalLM(
        LlamaConfig(**CONFIG["text_config"], attn_implementation="eager")
    ).eval()
    llama.load_state_dict(
        {
            name.removeprefix(prefix): tensor
            for name, tensor in weights.items()
            if name.startswith(prefix)
        }
    )
    words = weights["language_model.model.embed_tokens.weight"]
    ids = instruction_ids[0][instruction_ids[0] != 32000]
    with torch.no_grad():
        patches = policy.seen(pixel_values, None)[0]  # compared in test_openvla_oft
        asked = torch.cat([words[ids[:1]], patches, words[ids[1:]]])[None]
        out = llama.generate(
            inputs_embeds=asked,
            attention_mask=torch.ones(asked.shape[:2], dtype=torch.long),
            max_new_tokens=7,
            do_sample=False,
            prefix_allowed_tokens_fn=lambda batch, ids: list(range(FIRST, FIRST + BINS)),
            return_dict_in_generate=True,
            output_scores=True,
        )
    tokens = out.sequences[0, -7:]
    scores = torch.stack(out.scores, dim=1)[0].log_softmax(-1)
    return tokens - FIRST, scores.gather(-1, tokens[:, None])[:, 0]


def test_greedy_tokens_and_their_log_probs_are_those_of_transformers(folder):
    policy = policy_of(folder)
    rows = observed(policy, *QUESTIONS)
    choices, log_probs = policy(**rows).act(None)
    assert choices.shape == (3, 7)
    for number in range(3):
        row = {n: None if part is None else part[number : number + 1] for n, part in rows.items()}
        tokens, expected = generated(policy, folder, **row)
        assert choices[number].tolist() == tokens.tolist()
        torch.testing.assert_close(log_probs[number], expected, rtol=1e-5, atol=1e-5)


def test_generated_tokens_have_the_log_probs_that_training_computes(folder):
    policy = policy_of(folder)
    rows = observed(policy, *QUESTIONS)
    uniforms = torch.rand(3, policy.uniforms_per_chunk, generator=torch.Generator().manual_seed(0))
    distribution = policy(**rows).tempered(1.3)
    assert isinstance(distribution, policy.distribution) and policy.distribution is TokenByToken
    choices, acted = distribution.act(uniforms)
    scores = distribution.scores(choices)
    assert distribution.shape == choices.shape == (3, 7)
    assert float((scores.log_probs_BT - acted).abs().max()) < 1e-4
    assert len(set(choices.flatten().tolist())) > 10
    for number in range(3):
        row = {n: None if part is None else part[number : number + 1] for n, part in rows.items()}
        alone, alone_acted = policy(**row).tempered(1.3).act(uniforms[number : number + 1])
        assert torch.equal(alone[0], choices[number])
        torch.testing.assert_close(alone_acted[0], acted[number], rtol=1e-5, atol=1e-5)


def test_a_token_depends_on_those_before_and_on_no_later_one(folder):
    policy = policy_of(folder)
    distribution = policy(**observed(policy, "open drawer"))
    tokens = torch.arange(7)[None] * 30
    changed = tokens.clone()
    changed[0, 3] += 5
    one, other = (distribution.logits(distribution.context, t)[0] for t in (tokens, changed))
    torch.testing.assert_close(one[:4], other[:4])
    assert float((one[4:] - other[4:]).detach().abs().min(-1).values.max()) > 0


def test_keys_of_the_question_are_computed_once_per_chunk(folder):
    policy = policy_of(folder)
    places = []
    first = policy.language_model.model.layers[0]
    first.register_forward_pre_hook(lambda _, inputs: places.append(inputs[0].shape[1]))
    policy(**observed(policy, "open drawer")).act(None)
    assert len(places) == 7
    assert places[1:] == [1] * 6


def test_recomputing_leaves_gradient_and_generation_as_they_are(folder):
    gradients, tokens = [], []
    for recompute in (False, True):
        policy = policy_of(folder, recompute=recompute)
        distribution = policy(**observed(policy, *QUESTIONS))
        choices, _ = distribution.act(None)
        distribution.scores(choices).log_probs_BT.sum().backward()
        gradients.append({n: w.grad for n, w in policy.named_parameters() if w.grad is not None})
        tokens.append(choices)
    assert torch.equal(*tokens)
    assert gradients[0].keys() == gradients[1].keys() == dict(policy.named_parameters()).keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_features_are_the_state_that_predicts_the_first_token(folder):
    policy = policy_of(folder)
    rows = observed(policy, *QUESTIONS)
    features = policy.features(**rows)
    logits = policy.bin_logits(features, policy.action_tokenizer)
    tokens = torch.zeros(3, 7, dtype=torch.long)
    distribution = policy(**rows)
    expected = distribution.logits(distribution.context, tokens)[:, 0]
    torch.testing.assert_close(logits, expected)
    policy.drop_head()
    assert torch.equal(policy.features(**rows), features)


def test_statistics_are_read_from_config_json(folder):
    (folder / "dataset_statistics.json").unlink()
    wider = ACTION | {"q99": [1.8] * 6 + [1.0]}
    content = CONFIG | {"norm_stats": {"bridge_orig": {"action": ACTION}, "x": {"action": wider}}}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"several data sets, bridge_orig, x"):
        policy_of(folder)
    assert policy_of(folder, statistics="x").action_tokenizer.quantiles.high[0] == 1.8


def test_an_action_is_seven_tokens(folder):
    policy = policy_of(folder)
    assert (policy.chunk_length, policy.tokens_per_chunk) == (1, 7)
    assert policy.action_tokenizer.decode(np.full(7, 128)).shape == (1, 7)


def test_what_a_run_exports_is_a_checkpoint_again(folder, tmp_path):
    policy = policy_of(folder)
    save_policy(policy, tmp_path / "exported")
    again = policy_of(tmp_path / "exported")
    rows = observed(policy, "open drawer")
    assert torch.equal(policy(**rows).mode(), again(**rows).mode())


@pytest.mark.parametrize("part", ["proprio_projector", "action_head"])
def test_parts_of_an_oft_are_refused(tmp_path, part):
    folder = write_checkpoint(tmp_path, state=True, head=True)
    for file in folder.glob("*.pt"):
        if part not in file.name:
            file.unlink()
    with pytest.raises(CheckpointError, match=f"has a {part}, .* choose model=openvla_oft"):
        policy_of(folder)


def test_model_needs_a_folder():
    with pytest.raises(ConfigError, match=r"model=openvla ships no weights"):
        build_policy("openvla", path=None, spec=spec_of(), seed=0, options={})
