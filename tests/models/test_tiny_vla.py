"""The tiny VLA: shapes, conditioning, and the inputs that it adapts to."""

import gymnasium
import numpy as np
import pytest
import torch

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from siirl.imitation.behaviour_cloning import fit_scale
from siirl.models import ActionTokenizer, Policy, TinyVLA, TinyVLAConfig

TOKENIZER = ActionTokenizer(bins=16, low=(-1.0,) * 4, high=(1.0,) * 4)


def vla(**changes) -> TinyVLA:
    torch.manual_seed(0)
    settings = {"image_shape": (1, 32, 32), "proprioception_size": 4, "width": 32, **changes}
    return TinyVLA(TinyVLAConfig(action_tokenizer=TOKENIZER, **settings))


def inputs(policy: TinyVLA, *, text: str = "open the drawer", brightness: int = 7) -> dict:
    return {
        "pixel_values": torch.full((2, 1, 32, 32, 3), brightness, dtype=torch.uint8),
        "proprioception": torch.zeros(2, 4),
        "instruction_ids": torch.from_numpy(np.stack([policy.tokenize_instruction(text)] * 2)),
    }


def test_it_is_a_policy_with_one_row_of_logits_for_each_token():
    policy = vla()
    assert isinstance(policy, Policy)
    assert policy(**inputs(policy)).logits.shape == (2, 8 * 4, 16)


def test_image_and_instruction_change_the_answer():
    policy = vla()
    answer = policy(**inputs(policy)).logits
    assert not torch.allclose(answer, policy(**inputs(policy, brightness=200)).logits)
    assert not torch.allclose(answer, policy(**inputs(policy, text="close the door")).logits)


def test_several_cameras_are_all_seen():
    policy = vla(image_shape=(2, 32, 32))
    images = torch.zeros(1, 2, 32, 32, 3, dtype=torch.uint8)
    rest = {
        "proprioception": torch.zeros(1, 4),
        "instruction_ids": torch.ones(1, 16, dtype=torch.int64),
    }
    black = policy(pixel_values=images.clone(), **rest).logits
    images[:, 1] = 255
    assert not torch.allclose(black, policy(pixel_values=images, **rest).logits)


def test_it_adapts_to_an_environment_without_images():
    space = gymnasium.spaces.Dict({PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (3,))})
    spec = EnvSpec("state", ("only",), space, gymnasium.spaces.Discrete(2), max_episode_steps=10)
    policy = TinyVLA(TinyVLAConfig.for_env(spec, chunk_length=1))
    ids = torch.from_numpy(policy.tokenize_instruction(""))[None]
    assert policy(
        pixel_values=None, proprioception=torch.zeros(1, 3), instruction_ids=ids
    ).logits.shape == (1, 1, 2)


def test_an_environment_without_anything_to_see_is_refused():
    space = gymnasium.spaces.Dict({"sound": gymnasium.spaces.Box(-1, 1, (3,))})
    with pytest.raises(ValueError, match=f"neither '{IMAGES}' nor '{PROPRIOCEPTION}'"):
        TinyVLAConfig.for_env(EnvSpec("deaf", ("only",), space, gymnasium.spaces.Discrete(2), 10))


def test_words_are_hashed_the_same_everywhere():
    assert vla().tokenize_instruction("Open the DRAWER!")[:4].tolist() == [279, 438, 383, 0]


def test_a_new_layer_sees_fitted_proprioception_at_mean_0_and_deviation_1():
    layer = vla().proprioception_layer
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    # deviations 1 and 0.01; the last two never move
    felt = torch.tensor([[1.0, 0.02, 5.0, 0.0], [3.0, 0.04, 5.0, 0.0]])
    fit_scale(layer, felt)
    standardised = torch.tensor([[-1.0, -1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    assert torch.allclose(layer(felt), standardised @ weight.T + bias, atol=1e-3)


def test_policy_without_proprioception_has_no_layer_to_fit():
    assert vla(proprioception_size=0).proprioception_layer is None
