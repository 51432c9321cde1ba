"""OpenVLA-OFT: the logits of the published computation, and checkpoints in published layout."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.libero.openvla_conventions import policy_image
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.models import save_policy
from siirl.models.adapters import adapted_layers
from siirl.models.policy_loader import build_policy, load_policy
from siirl.params.model_args import LoraArguments
from siirl.preflight.check_embodied import check_actions
from tests.models.tiny_openvla import (
    ACTION,
    CONFIG,
    STATE,
    WIDTH,
    know_tiny_encoders,
    write_checkpoint,
)


def spec_of(*, cameras=2, actions=7):
    spaces = {
        IMAGES: gymnasium.spaces.Box(0, 255, (cameras, 64, 64, 3), np.uint8),
        PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (8,)),
    }
    return EnvSpec(
        "robot",
        ("only",),
        gymnasium.spaces.Dict(spaces),
        gymnasium.spaces.Box(-1, 1, (actions,), np.float32),
        10,
    )


@pytest.fixture(autouse=True)
def tiny_encoders(monkeypatch):
    know_tiny_encoders(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint", state=True)


def policy_of(folder, *, spec=None, weights=True, **options):
    return build_policy(
        "openvla_oft",
        path=str(folder),
        spec=spec or spec_of(),
        seed=0,
        options={"images": 2, **options},
        weights=weights,
    )


def observed(policy, *instructions, seed=0):
    """The policy's inputs from an observation for each instruction."""
    generator = np.random.default_rng(seed)
    rows = []
    for instruction in instructions:
        images = generator.integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
        images, state = policy.prepare(
            images=images, proprioception=generator.uniform(-1, 1, 8).astype(np.float32)
        )
        rows.append((images, state, policy.tokenize_instruction(instruction)))
    names = ("pixel_values", "proprioception", "instruction_ids")
    return {
        name: None if column[0] is None else torch.from_numpy(np.stack(column))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def published_logits(policy, folder, *, pixel_values, proprioception, instruction_ids):
    """One observation as in the published code.

    No padding, no positions, an additive mask of zeros, all logits, sliced afterwards.
    """
    weights = {
        name: tensor.float()
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    weights |= {
        f"proprio_projector.{name.removeprefix('module.')}": tensor
        for name, tensor in torch.load(folder / "proprio_projector--50_checkpoint.pt").items()
    }

    def through(name, values):
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def gelu(values):
        return values * (1 + torch.erf(values / 2**0.5)) / 2

    llama = LlamaForCausalLM(
        LlamaConfig(**CONFIG["text_config"], attn_implementation="eager")
    ).eval()
    llama.load_state_dict(
        {
            name.removeprefix("language_model."): tensor
            for name, tensor in weights.items()
            if name.startswith("language_model.")
        }
    )
    with torch.no_grad():
        # [2, P, 12]; the encoders themselves are compared with timm's
        patches = policy.vision_backbone(pixel_values[0])
        projected = through(
            "projector.fc3", gelu(through("projector.fc2", gelu(through("projector.fc1", patches))))
        ).flatten(0, 1)
        state = through(
            "proprio_projector.fc2", gelu(through("proprio_projector.fc1", proprioception[0]))
        )
        ids = instruction_ids[0][instruction_ids[0] != 32000]
        words = weights["language_model.model.embed_tokens.weight"]
        sequence = torch.cat(
            [
                words[ids[:1]],
                projected,
                state[None],
                words[ids[1:]],
                torch.zeros(56, WIDTH),
                words[[2]],
            ]
        )[None]
        everybody_sees_everybody = torch.zeros(1, 1, sequence.shape[1], sequence.shape[1])
        logits = llama(inputs_embeds=sequence, attention_mask=everybody_sees_everybody).logits[0]
    before_first = len(projected) + 1 + len(ids) - 1
    return logits[before_first : before_first + 56, 32064 - 64 - 256 : 32064 - 64]


def test_logits_are_those_of_the_published_computation(folder):
    policy = policy_of(folder)
    row = observed(policy, "pick up the black bowl")
    logits = policy(**row).logits
    assert logits.shape == (1, 56, 256)
    torch.testing.assert_close(
        logits[0], published_logits(policy, folder, **row), rtol=1e-4, atol=1e-5
    )
    assert float(logits.detach().std()) > 0.1


def test_adapters_leave_the_projector_of_proprioception_alone(folder):
    """Its eight inputs are fewer than the usual rank, which would be refused."""
    policy = policy_of(folder)
    layers = adapted_layers(policy, LoraArguments(rank=4), layers=policy._linear_layers())
    assert "projector.fc1" in layers
    assert not [name for name in layers if name.startswith("proprio_projector.")]


@pytest.mark.parametrize(
    ("questions", "masked"),
    [(("open the drawer", "pick up the bowl"), True), (("open drawer", "pick bowl"), False)],
)
def test_only_questions_of_different_length_need_a_mask(folder, questions, masked):
    policy = policy_of(folder)
    seen = []

    def note(module, arguments, named):
        seen.append(named["attention_mask"])

    for layer in policy.language_model.model.layers:
        layer.register_forward_pre_hook(note, with_kwargs=True)
    policy(**observed(policy, *questions))
    assert [mask is not None for mask in seen] == [masked, masked]


def test_short_and_long_questions_side_by_side_are_answered_as_alone(folder):
    policy = policy_of(folder)
    rows = observed(
        policy, "open drawer", "pick up the black bowl and place it on the plate", "pick up bowl"
    )
    together = policy(**rows).logits
    for number in range(3):
        alone = policy(
            **{name: column[number : number + 1] for name, column in rows.items()}
        ).logits
        torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-5)


def test_images_state_and_question_are_all_read(folder):
    policy = policy_of(folder)
    row = observed(policy, "open drawer")
    logits = policy(**row).logits
    others = {
        "pixel_values": row["pixel_values"].flip(1),
        "proprioception": -row["proprioception"],
        "instruction_ids": observed(policy, "open plate")["instruction_ids"],
    }
    for name, other in others.items():
        assert not torch.allclose(policy(**{**row, name: other}).logits, logits), name


def test_observations_become_what_the_checkpoint_was_trained_on(folder):
    policy = policy_of(folder)
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
    seen, state = policy.prepare(
        images=images, proprioception=np.array([0.5, -3, 0, 0, 0, 0, 0, 1], np.float32)
    )
    assert np.array_equal(seen, np.stack([policy_image(image) for image in images]))
    assert state == pytest.approx([0.5, -1, 0, 0, 0, 0, 0, 1], abs=1e-6)
    seen, state = policy_of(folder, images=1).prepare(
        images=images, proprioception=np.zeros(8, np.float32)
    )
    assert seen.shape == (1, 224, 224, 3)


def test_question_ends_with_the_blank_and_is_padded(folder):
    ids = policy_of(folder).tokenize_instruction("Open Drawer")
    assert ids[0] == 1
    assert ids[len(ids[ids != 32000]) - 1] == 29871
    assert len(ids) == 96
    with pytest.raises(
        ConfigError,
        match=r"makes a question of 18 tokens: give "
        r"actor_rollout_ref.model.options.question_length=18",
    ):
        policy_of(folder, question_length=9).tokenize_instruction("pick up the bowl")


def test_tokens_are_actions_of_the_environment_and_back(folder):
    tokenizer = policy_of(folder).action_tokenizer
    tokens = np.random.default_rng(0).integers(1, 256, (8, 7))
    tokens[:, -1] = (
        # bins count down: 1 is an open hand for the network, -1 for the environment
        0
    )
    actions = tokenizer.decode(tokens.reshape(-1))
    assert actions.shape == (8, 7)
    assert actions[:, -1].tolist() == [-1.0] * 8
    assert np.array_equal(tokenizer.encode(actions).reshape(8, 7), tokens)
    check_actions(tokenizer, spec_of(), place="here")


def test_checkpoint_without_proprioception_reads_images_alone(tmp_path):
    policy = policy_of(write_checkpoint(tmp_path), images=1)
    seen, state = policy.prepare(
        images=np.zeros((2, 64, 64, 3), np.uint8), proprioception=np.zeros(8, np.float32)
    )
    assert state is None
    question = torch.from_numpy(policy.tokenize_instruction("open drawer"))[None]
    logits = policy(
        pixel_values=torch.from_numpy(seen[None]), proprioception=None, instruction_ids=question
    ).logits
    assert logits.shape == (1, 56, 256)


def test_what_a_run_exports_is_a_checkpoint_again(folder, tmp_path):
    policy = policy_of(folder)
    save_policy(policy, tmp_path / "exported")
    again = policy_of(tmp_path / "exported")
    row = observed(policy, "open drawer")
    assert torch.equal(policy(**row).logits, again(**row).logits)
    assert json.loads((tmp_path / "exported" / "config.json").read_text()) == CONFIG


def test_features_serve_a_critic_without_the_head(folder):
    policy = policy_of(folder)
    row = observed(policy, "open drawer", "pick up bowl")
    features = policy.features(**row)
    assert features.shape == (2, policy.feature_size)
    policy.drop_head()
    assert torch.equal(policy.features(**row), features)
    assert not any("lm_head" in name for name, _ in policy.named_parameters())


def test_recomputing_leaves_the_gradient_as_it_is(folder):
    gradients = []
    for recompute in (False, True):
        policy = policy_of(folder, recompute=recompute)
        policy(**observed(policy, "open drawer")).logits.square().sum().backward()
        gradients.append({name: weight.grad for name, weight in policy.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_names_and_shapes_are_compared_without_reading_weights(folder):
    policy = policy_of(folder, weights=False)
    assert all(weight.is_meta for weight in policy.parameters())
    config = CONFIG | {"text_config": CONFIG["text_config"] | {"num_hidden_layers": 3}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError,
        match=r"another model than OpenVLAOFT: missing "
        r"language_model\.model\.layers\.2\..* \(9 in all\)",
    ):
        policy_of(folder, weights=False)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(MissingAssetError, match=name):
        policy_of(folder)


def test_damaged_files_are_named(folder):
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json is damaged"):
        policy_of(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"means, stds missing"):
        policy_of(folder)


def test_damaged_tokenizer_and_a_language_model_without_vocabulary_are_named(folder):
    config = CONFIG | {"text_config": {"model_type": "llama"}}
    whole = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(whole[:100])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged"):
        policy_of(folder)
    (folder / "tokenizer.json").write_text(whole)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="vocab_size missing in its text_config"):
        policy_of(folder)


def test_cut_projector_of_proprioception_is_named(folder):
    file = folder / "proprio_projector--50_checkpoint.pt"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(
        CheckpointError, match=r"proprio_projector--50_checkpoint\.pt cannot be read"
    ):
        policy_of(folder)


def test_several_projectors_of_proprioception_are_refused(folder):
    (folder / "proprio_projector--60_checkpoint.pt").touch()
    with pytest.raises(
        CheckpointError,
        match=r"has several files proprio_projector--\*_checkpoint\.pt, .*--50.*: keep one",
    ):
        policy_of(folder)


def test_data_set_is_chosen_where_there_are_several(folder):
    wider = ACTION | {"q99": [1.8] * 6 + [1.0]}
    (folder / "dataset_statistics.json").write_text(
        json.dumps(
            {
                "libero_object_no_noops": {"action": ACTION, "proprio": STATE},
                "bridge": {"action": wider},
            }
        )
    )
    with pytest.raises(
        CheckpointError,
        match=r"has statistics of several data sets, .* name one of .*options\.statistics=None",
    ):
        policy_of(folder)
    assert policy_of(folder, statistics="object").action_tokenizer.quantiles.high[0] == 0.9
    with pytest.raises(CheckpointError, match="lack its ranges"):
        policy_of(folder, statistics="bridge")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            spec_of(cameras=1),
            r"reads actor_rollout_ref\.model\.options\.images=2 cameras, but environment 'robot' "
            r"has 1",
        ),
        (spec_of(actions=4), r"has the actions of LIBERO's robot, but 'robot' has Box"),
    ],
)
def test_environment_that_does_not_fit_is_refused(folder, spec, message):
    with pytest.raises(ConfigError, match=message):
        policy_of(folder, spec=spec)


def test_model_needs_a_folder():
    with pytest.raises(ConfigError, match=r"model=openvla_oft ships no weights"):
        build_policy("openvla_oft", path=None, spec=spec_of(), seed=0, options={})


def test_tiny_vla_with_a_folder_of_openvla_names_the_model(folder):
    with pytest.raises(ConfigError, match="choose model=openvla_oft or model=openvla"):
        load_policy(folder)
