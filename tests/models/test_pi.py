"""pi0 and pi0.5 against LeRobot's numbers (`pi/make_reference.py`), and as policies of siirl."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from siirl.algos.flow_distributions import FlowEnd, FlowNoise, FlowSDE
from siirl.errors import ConfigError
from siirl.models.pi_checkpoint import HEAD, WORDS
from siirl.models.pi_parts import scaled_and_centred
from siirl.models.policy_loader import build_policy, save_policy
from siirl.params.model_args import LoraArguments
from tests.models.published_flows import (
    WATCHED,
    observed,
    require_merged_adapters,
    require_same_chunks,
    require_same_files,
    require_same_log_probs,
    robot,
    run_lerobot,
)

FOLDER = Path(__file__).parent / "pi"
KINDS = ("pi0", "pi05")
STATE = np.array([-2.0, -1.0, -0.999, 0.0, 0.5, 0.9921875, 1.0, 3.0], np.float32)


def checkpoint(kind) -> Path:
    return FOLDER / kind / "checkpoint"


def make(kind, path=None, *, spec=None, **options):
    place = str(path or checkpoint(kind))
    return build_policy(kind, path=place, spec=spec or robot(), seed=0, options=options)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def reference(kind):
    return load_file(FOLDER / kind / "reference.safetensors")


@pytest.fixture(scope="module")
def tasks(kind):
    with safe_open(FOLDER / kind / "reference.safetensors", framework="pt") as stored:
        return json.loads(stored.metadata()["tasks"])


@pytest.fixture(scope="module")
def policy(kind):
    return make(kind)


@pytest.fixture(scope="module")
def observation(policy, reference, tasks) -> dict[str, torch.Tensor]:
    return observed(policy, reference, tasks)


def prefix_of(policy, observation):
    return policy._prefix(
        observation["pixel_values"], observation["proprioception"], observation["instruction_ids"]
    )


def euler(policy, observation, noise_NKA) -> torch.Tensor:
    """Chunks [N, K, A] of the whole network, from noise without random steps.

    At LeRobot's times, which are rounded to float32: the least period of 0.004 makes their last bit
    0.0001 radian.
    """
    with torch.no_grad():
        flow = policy(**observation)
        x_NF = noise_NKA.flatten(1)[:, policy.order_F]
        for step in range(flow.steps):
            time_N1 = torch.full((len(x_NF), 1), 1.0 - step / flow.steps)
            v_NF = flow.velocity(flow.context, x_NF[:, None], 1 - time_N1.double())[:, 0]
            x_NF = x_NF + v_NF / flow.steps
    return x_NF[:, policy.order_F.argsort()].view(noise_NKA.shape)


def test_a_prompt_has_lerobots_tokens(kind, policy, observation, reference, tasks):
    for row, task in enumerate(tasks):
        tokens = reference["tokens"][row][reference["mask"][row].bool()].tolist()
        found = policy.tokenize_instruction(task)
        if kind == "pi05":
            prompt = policy.prompt(found, observation["proprioception"][row].numpy())
            found = policy.io_format.tokens(prompt)
        assert found[found >= 0].tolist() == tokens
        assert len(found) == reference["tokens"].shape[1]


def test_state_is_scaled_and_actions_are_restored_as_lerobot_does(policy, reference):
    _, state = policy.prepare(
        images=reference["images"][0].numpy(), proprioception=reference["state"][0].numpy()
    )
    np.testing.assert_allclose(state, reference["normalised_state"][0], rtol=1e-5, atol=1e-6)
    sampled = reference["sampled"][0].numpy()[:4]
    expected = np.clip(reference["unnormalised"][0], -1, 1)[:4]
    found = policy.action_tokenizer.decode(sampled.flatten())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_chunk_from_the_same_noise_is_lerobots(policy, observation, reference):
    found = euler(policy, observation, reference["noise"])
    torch.testing.assert_close(found[..., :7], reference["sampled"], rtol=1e-4, atol=1e-4)


def test_velocities_and_gradients_are_lerobots(kind, observation, reference):
    policy = make(kind)
    for weight in policy.parameters():
        weight.requires_grad_(True)
    noise, time = reference["noise"], reference["time"]
    actions = torch.nn.functional.pad(reference["actions"], (0, 2))
    x_NKA = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
    prefix = prefix_of(policy, observation)
    v_NKA = policy.model.velocity(prefix.context, prefix.valid_NL, x_NKA[:, None], time[:, None])[
        :, 0
    ]
    losses = (noise - actions - v_NKA).square()
    torch.testing.assert_close(losses, reference["losses"], rtol=1e-4, atol=1e-5)
    losses.mean().backward()
    weights = dict(policy.named_parameters())
    names = [name.removeprefix(WATCHED) for name in reference if name.startswith(WATCHED)]
    assert len(names) == 6
    for name in names:
        own = HEAD if name == WORDS else name
        expected = reference[WATCHED + name]
        torch.testing.assert_close(weights[own].grad, expected, rtol=1e-3, atol=1e-6)


def published(kind, folder: Path) -> Path:
    """The checkpoint under the names of lerobot/pi0_base: no `model.`, the words as the head."""
    shutil.copytree(checkpoint(kind), folder)
    weights = load_file(folder / "model.safetensors")
    weights[HEAD] = weights.pop(WORDS)
    named = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(named, folder / "model.safetensors")
    return folder


def test_published_names_are_read_as_lerobots_own(tmp_path, kind, policy, observation, reference):
    again = make(kind, published(kind, tmp_path / "published"))
    expected = euler(policy, observation, reference["noise"])
    assert torch.equal(euler(again, observation, reference["noise"]), expected)


@pytest.mark.parametrize(
    ("noise", "distribution"), [("sde", FlowSDE), ("learnt", FlowNoise), ("end", FlowEnd)]
)
def test_a_sampled_chunk_has_the_log_prob_that_training_computes(
    kind, noise, distribution, observation
):
    policy = make(kind, noise=noise)
    require_same_log_probs(policy, observation, distribution)


def test_the_prefix_is_computed_once_for_all_steps_of_a_chunk(policy, observation):
    passes = []
    layers = policy.model.paligemma_with_expert.paligemma.model.language_model.layers
    hooks = [layer.register_forward_hook(lambda *_: passes.append(1)) for layer in layers]
    with torch.no_grad():
        policy(**observation).mode()
    for hook in hooks:
        hook.remove()
    assert len(passes) == len(layers)


def test_the_features_see_the_state(policy, observation):
    with torch.no_grad():
        before = policy.features(**observation)
        moved = observation["proprioception"] + 0.5
        after = policy.features(**{**observation, "proprioception": moved})
    assert before.shape == (3, policy.feature_size)
    assert (after - before).abs().amax(1).min() > 1e-3


def test_the_features_need_no_more_than_a_critic_keeps(kind, policy, observation):
    critic = make(kind, noise="learnt")
    critic.drop_head()
    with torch.no_grad():
        torch.testing.assert_close(
            critic.features(**observation), policy.features(**observation), rtol=0, atol=1e-5
        )
    assert not any("action_" in name or "deviation" in name for name in critic.state_dict())


def test_only_what_lerobot_trains_has_a_gradient(kind, observation):
    for flags, frozen in (
        ({}, (".paligemma.",)),
        ({"train_expert_only": False}, ()),
        ({"train_expert_only": False, "freeze_vision_encoder": True}, ("vision_tower",)),
    ):
        policy = make(kind, **flags)
        flow = policy(**observation)
        uniforms = torch.full((3, policy.uniforms_per_chunk), 0.4)
        flow.log_prob(flow.sample(uniforms).detach()).sum().backward()
        trained = {name for name, weight in policy.named_parameters() if weight.grad is not None}
        asked = {name for name, weight in policy.named_parameters() if weight.requires_grad}
        assert trained == asked
        assert not any(part in name for part in frozen for name in trained)
        unread = {name for name, _ in policy.named_parameters()} - trained
        assert all(
            any(part in name for part in (*frozen, "lm_head", "layers.2.", "language_model.norm"))
            for name in unread
        )


def test_adapters_are_trained_instead_of_the_weights_and_merged_when_read(
    tmp_path, kind, observation
):
    require_merged_adapters(
        make(kind), observation, folder=tmp_path, read=lambda folder: make(kind, folder)
    )


def test_adapters_without_names_are_where_weights_would_be_trained(kind):
    policy = make(kind)
    policy.adapt(LoraArguments(rank=2), seed=0)
    # seven a layer; the final norm of pi0.5 is a layer too, and two of each of its blocks
    assert len(policy.adapted) == {"pi0": 3 * 7 + 5, "pi05": 3 * 9 + 1 + 4}[kind]


def test_a_saved_policy_is_read_again_without_the_first_folder(tmp_path, kind, observation):
    first = tmp_path / "first"
    shutil.copytree(checkpoint(kind), first)
    save_policy(make(kind, first), tmp_path / "second")
    shutil.rmtree(first)
    again = make(kind, tmp_path / "second")
    with torch.no_grad():
        one, other = (policy(**observation).mode() for policy in (make(kind), again))
    assert torch.equal(one, other)


def test_images_are_scaled_and_padded_on_both_sides():
    found = scaled_and_centred(torch.ones(1, 3, 3, 8), 8)
    assert found.shape == (1, 3, 8, 8)
    rows = found[0, 0].sum(1).tolist()
    assert rows == [0, 0, 8, 8, 8, 0, 0, 0]


def test_the_prompt_of_pi05_has_the_bins_of_the_state():
    policy = make("pi05")
    characters = policy.tokenize_instruction(" pick_up\nit ")
    expected = "Task: pick up it, State: -1 0 0 128 192 255 255 255;\nAction: "
    assert policy.prompt(characters, STATE) == expected


def test_lerobot_before_05_padded_the_state_of_the_prompt():
    policy = make("pi05", pad_state=True)
    characters = policy.tokenize_instruction("go")
    assert policy.prompt(characters, STATE).endswith(" 255 255 255 128 128;\nAction: ")


def test_an_instruction_that_does_not_fit_the_prompt_is_refused():
    with pytest.raises(ConfigError, match=r"has 449 characters, but the prompt .* room for 448"):
        make("pi05").tokenize_instruction("x" * 449)


def lerobot(*words: object) -> None:
    script = FOLDER / "make_reference.py"
    run_lerobot(script, *words, variable="LEROBOT_PI_PYTHON", version="0.6.1")


@pytest.mark.slow
def test_lerobot_makes_the_committed_files_again(tmp_path):
    lerobot(tmp_path)
    for kind in KINDS:
        require_same_files(tmp_path / kind, FOLDER / kind)


@pytest.mark.slow
def test_lerobot_acts_with_a_folder_that_siirl_wrote_as_with_its_own(tmp_path, kind, reference):
    policy = tmp_path / "policy"
    save_policy(make(kind), policy)
    lerobot(tmp_path, "--check", policy)
    require_same_chunks(tmp_path / "chunks.safetensors", reference)
