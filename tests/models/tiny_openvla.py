"""A tiny checkpoint of OpenVLA-OFT in the published layout.

Names, files and vocabulary are the real ones; two encoders of three blocks and a Llama of two
layers replace 7 billion weights.
"""

import json

import torch
from huggingface_hub import save_torch_state_dict
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from siirl.models import openvla_vision
from siirl.models.openvla_vision import EncoderShape

ENCODERS = {
    "tiny_dino": EncoderShape(
        width=8, blocks=3, heads=2, hidden=12, patch=56, registers=2, scaled=True
    ),
    "tiny_siglip": EncoderShape(width=4, blocks=3, heads=1, hidden=8, patch=56),
}
PATCHES = 16
WIDTH = 16
CONFIG = {
    "model_type": "openvla",
    "timm_model_ids": list(ENCODERS),
    "image_sizes": [224, 224],
    "pad_token_id": 32000,
    "pad_to_multiple_of": 64,
    "text_config": {
        "model_type": "llama",
        "vocab_size": 32064,
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "pad_token_id": 32000,
    },
}
PREPROCESSOR = {
    "means": [[0.485, 0.456, 0.406], [0.5, 0.5, 0.5]],
    "stds": [[0.229, 0.224, 0.225], [0.5, 0.5, 0.5]],
}
ACTION = {"q01": [-0.9] * 6 + [0.0], "q99": [0.9] * 6 + [1.0], "mask": [True] * 6 + [False]}
STATE = {"q01": [-1.0] * 8, "q99": [1.0] * 8}
QUESTION = ["In", ":", "What", "action", "should", "the", "robot", "take", "to", "?", "Out"]
WORDS = [
    *QUESTION,
    "pick",
    "up",
    "black",
    "bowl",
    "and",
    "place",
    "it",
    "on",
    "plate",
    "open",
    "drawer",
]


def know_tiny_encoders(monkeypatch):
    """Make config.json name the tiny encoders."""
    for name, shape in ENCODERS.items():
        monkeypatch.setitem(openvla_vision.ENCODERS, name, shape)


def write_checkpoint(folder, *, state=False, head=False, seed=0):
    """Write a folder with a policy of random weights; return the folder.

    `state` adds the projector of proprioception, `head` the regression head.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "dataset_statistics.json").write_text(
        json.dumps({"libero_object_no_noops": {"action": ACTION, "proprio": STATE}})
    )
    tokenizer().save(str(folder / "tokenizer.json"))
    weights = random_weights(seed)
    save_torch_state_dict(weights, folder, max_shard_size=2_000_000)
    if state:
        shapes = linear("fc1", 8, WIDTH) | linear("fc2", WIDTH, WIDTH)
        projector = random_module(shapes, seed=seed + 1)
        torch.save(projector, folder / "proprio_projector--50_checkpoint.pt")
    if head:
        torch.save(
            random_module(head_weights(), seed=seed + 2), folder / "action_head--50_checkpoint.pt"
        )
    return folder


def random_module(shapes, *, seed):
    """Weights of a module that DistributedDataParallel saved in a separate file."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"module.{name}": 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def head_weights(width=WIDTH):
    """Weights of `L1RegressionActionHead`, prismatic/models/action_heads.py."""

    def norm(name, size):
        return {f"{name}.weight": (size,), f"{name}.bias": (size,)}

    weights = norm("model.layer_norm1", 7 * width) | linear("model.fc1", 7 * width, width)
    for number in range(2):
        block = f"model.mlp_resnet_blocks.{number}.ffn"
        weights |= norm(f"{block}.0", width) | linear(f"{block}.1", width, width)
    return weights | norm("model.layer_norm2", width) | linear("model.fc2", width, 7)


def tokenizer():
    """Word ids as in Llama's tokenizer: unknown is 0, <s> 1, </s> 2."""
    ids = {
        "<unk>": 0,
        "<s>": 1,
        "</s>": 2,
        **{word: 100 + number for number, word in enumerate(WORDS)},
    }
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def random_weights(seed):
    """Every weight of the published layout in bfloat16, including those that no pass reads."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {}
    for name, (_, shape) in zip(("featurizer", "fused_featurizer"), ENCODERS.items(), strict=True):
        shapes |= {
            f"vision_backbone.{name}.{part}": size for part, size in encoder_weights(shape).items()
        }
    seen = sum(shape.width for shape in ENCODERS.values())
    shapes |= (
        linear("projector.fc1", seen, 4 * seen)
        | linear("projector.fc2", 4 * seen, WIDTH)
        | linear("projector.fc3", WIDTH, WIDTH)
    )
    shapes |= {f"language_model.{name}": size for name, size in llama_weights().items()}
    return {
        name: (0.3 * torch.randn(size, generator=generator)).bfloat16()
        for name, size in shapes.items()
    }


def encoder_weights(shape):
    """Weights of timm's vision transformer, whose last block and norm OpenVLA does not run."""
    width = shape.width
    weights = {
        "pos_embed": (1, PATCHES, width),
        "patch_embed.proj.weight": (width, 3, shape.patch, shape.patch),
    }
    weights |= {"patch_embed.proj.bias": (width,), "norm.weight": (width,), "norm.bias": (width,)}
    if shape.registers:
        weights |= {"cls_token": (1, 1, width), "reg_token": (1, shape.registers, width)}
    else:
        weights |= {"attn_pool.latent": (1, 1, width)}
    for number in range(shape.blocks):
        block = f"blocks.{number}"
        for norm in ("norm1", "norm2"):
            weights |= {f"{block}.{norm}.weight": (width,), f"{block}.{norm}.bias": (width,)}
        weights |= linear(f"{block}.attn.qkv", width, 3 * width) | linear(
            f"{block}.attn.proj", width, width
        )
        weights |= linear(f"{block}.mlp.fc1", width, shape.hidden) | linear(
            f"{block}.mlp.fc2", shape.hidden, width
        )
        if shape.scaled:
            weights |= {
                f"{block}.ls1.scale_factor": (width,),
                f"{block}.ls2.scale_factor": (width,),
            }
    return weights


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def llama_weights():
    text = CONFIG["text_config"]
    width, hidden = text["hidden_size"], text["intermediate_size"]
    weights = {
        "model.embed_tokens.weight": (text["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    weights |= {"lm_head.weight": (text["vocab_size"], width)}
    for number in range(text["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        weights |= {f"{layer}.self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
        weights |= {f"{layer}.mlp.{part}_proj.weight": (hidden, width) for part in ("gate", "up")}
        weights |= {f"{layer}.mlp.down_proj.weight": (width, hidden)}
        weights |= {
            f"{layer}.{norm}.weight": (width,)
            for norm in ("input_layernorm", "post_attention_layernorm")
        }
    return weights
