"""The encoders compute timm's outputs."""

import pytest
import torch

from siirl.errors import UnknownNameError
from siirl.models.openvla_vision import EncoderShape, VisionBackbone, VisionEncoder, encoder_shape

DINO = EncoderShape(width=8, blocks=3, heads=2, hidden=12, registers=2, scaled=True)
SIGLIP = EncoderShape(width=8, blocks=3, heads=2, hidden=12)


def waves(*size, slope, start=0.0):
    """Numbers that are the same with every version of torch."""
    count = torch.Size(size).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * slope + start).float().view(size)


# Output of timm 1.0.31, `VisionTransformer(img_size=28, patch_size=14, embed_dim=8, depth=3,
# num_heads=2, mlp_ratio=1.5, num_classes=0)` with `init_values=1e-5, reg_tokens=2,
# no_embed_class=True` or `class_token=False, global_pool="map"`, of the same weights and image: the
# first two features of each patch of `get_intermediate_layers(image, n=[1])`.
@pytest.mark.parametrize(
    ("shape", "features"),
    [
        (DINO, [3.5305, -2.56197, -1.21927, -0.76888, 4.00064, -0.57037, 1.27357, -2.80481]),
        (SIGLIP, [-0.04674, -1.55301, -4.63979, 0.55616, 0.45336, 0.39228, -2.17442, -1.48881]),
    ],
)
def test_features_are_those_of_timm(shape, features):
    encoder = VisionEncoder(shape, image_size=28, recompute=False)
    encoder.load_state_dict(
        {
            name: 0.5 * waves(*tensor.shape, slope=0.37, start=len(name))
            for name, tensor in encoder.state_dict().items()
        }
    )
    patches = encoder(waves(1, 3, 28, 28, slope=0.11))
    assert patches.shape == (1, 4, 8)
    assert patches[0, :, :2].flatten().tolist() == pytest.approx(features, abs=1e-4)


def test_each_encoder_gets_colours_in_its_own_normalisation():
    backbone = VisionBackbone(
        [DINO, SIGLIP],
        means=[[0.5] * 3, [0.0] * 3],
        stds=[[0.25] * 3, [1.0] * 3],
        image_size=28,
        recompute=False,
    )
    image = torch.full((1, 28, 28, 3), 255, dtype=torch.uint8)
    patches = backbone(image)
    first = backbone.featurizer(torch.full((1, 3, 28, 28), 2.0))  # (1 - 0.5) / 0.25
    second = backbone.fused_featurizer(torch.full((1, 3, 28, 28), 1.0))
    torch.testing.assert_close(patches, torch.cat([first, second], dim=-1))


def test_recomputing_leaves_the_gradient_as_it_is():
    torch.manual_seed(0)
    kept, recomputing = (
        VisionEncoder(DINO, image_size=28, recompute=False),
        VisionEncoder(DINO, image_size=28, recompute=True),
    )
    recomputing.load_state_dict(kept.state_dict())
    image = waves(2, 3, 28, 28, slope=0.11)
    for encoder in (kept, recomputing):
        encoder(image).square().sum().backward()
    gradients = [
        [weight.grad for weight in encoder.parameters()] for encoder in (kept, recomputing)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_unknown_encoder_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError,
        match=r"'vit_so400m_patch14_siglip_384'.* Did you mean 'vit_so400m_patch14_siglip_224'",
    ):
        encoder_shape("vit_so400m_patch14_siglip_384")
