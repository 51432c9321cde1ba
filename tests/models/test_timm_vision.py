"""Encoders of timm's parts compute the numbers of our own modules, bit for bit."""

import sys

import pytest
import torch

from siirl.errors import ConfigError
from siirl.models.openvla_vision import ENCODERS, EncoderShape, VisionEncoder
from siirl.models.timm_vision import TimmEncoder, load_timm

DINO = EncoderShape(width=16, blocks=3, heads=2, hidden=24, registers=4, scaled=True)
SIGLIP = EncoderShape(width=16, blocks=3, heads=2, hidden=43)
SMALL = dict(zip(ENCODERS, (DINO, SIGLIP), strict=True))


@pytest.fixture(scope="module")
def timm():
    try:
        return load_timm()
    except ConfigError as error:
        pytest.skip(f"timm, and a torchvision that loads with this torch: {error.__cause__}")


@pytest.mark.parametrize(("name", "shape"), SMALL.items())
@pytest.mark.parametrize("recompute", [False, True])
def test_patches_are_those_of_our_own_modules_bit_for_bit(timm, name, shape, recompute):
    torch.manual_seed(0)
    ours = VisionEncoder(shape, image_size=28, recompute=recompute)
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    theirs = TimmEncoder(name, shape, image_size=28, recompute=recompute)
    theirs.load_state_dict(ours.state_dict())
    colours = torch.randn(2, 3, 28, 28)
    assert torch.equal(theirs(colours), ours(colours))


@pytest.mark.parametrize("name", ENCODERS)
def test_the_published_encoders_have_the_names_and_shapes_of_ours(timm, name):
    with torch.device("meta"):
        ours, theirs = (
            make(image_size=224, recompute=False).state_dict()
            for make in (
                lambda **named: VisionEncoder(ENCODERS[name], **named),
                lambda **named: TimmEncoder(name, ENCODERS[name], **named),
            )
        )
    assert {key: value.shape for key, value in theirs.items()} == {
        key: value.shape for key, value in ours.items()
    }


def test_a_timm_that_does_not_load_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"timm does not load .* TORCH_BUILD=cuda, or leave"):
        load_timm()
