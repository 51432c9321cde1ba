"""Train the tiny video encoder by joint-embedding prediction: `python -m vjepa.train_tiny CLIPS.npz
--output FOLDER`.

This is V-JEPA 2's objective at a size for one CPU thread. A context encoder sees some of a clip's
tokens, and a predictor fills in the latents of the hidden ones. The targets are the normalised
latents of an exponential moving average of the encoder, and the loss is L1. The averaged encoder is
kept, and a read-out is then trained on its frozen latents (vjepa.train_readout). The same clips,
seed and thread count give the same weights. Left out: augmentation, several clip lengths, training
on several devices.

Source: Assran et al. 2025, arXiv 2506.09985, section 2; loss and schedule as in
facebookresearch/vjepa2.
"""

# Axes: B clip, F frame, N token, D channel.

import argparse
import copy
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from vjepa.clips import frame_indices, normalise
from vjepa.masking import MULTI_BLOCK, BlockMask, FutureMask, sample_masks
from vjepa.predictor import Predictor
from vjepa.readout import ReadOut
from vjepa.train_readout import EpisodeIndex, ReadOutConfig, prefix_features, train_readout
from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig, select_tokens

TINY = VideoTransformerConfig(
    image_size=64,
    frames_per_clip=8,
    patch_size=8,
    tubelet_size=2,
    width=96,
    depth=4,
    num_heads=2,
    mlp_ratio=4.0,
)  # about 8 ms per clip on one thread, 1.9 MB


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings of the tiny encoder."""

    steps: int = 800
    batch_size: int = 24
    learning_rate: float = 1e-3  # 525e-6 in V-JEPA 2; small models tolerate more
    warmup_steps: int = 50
    weight_decay: float = 0.04  # V-JEPA 2
    ema_start: float = 0.99  # 0.99925 in V-JEPA 2, which trains 300 times longer
    ema_end: float = 0.999
    predictor_width: int = 48
    predictor_depth: int = 2
    seed: int = 0


class ClipSampler:
    """Random segments of random episodes, so that a clip may end anywhere in a task."""

    def __init__(
        self,
        *,
        frames_NHW3: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        frames_per_clip: int,
        seed: int,
    ) -> None:
        if int(lengths.sum()) != len(frames_NHW3) or len(lengths) == 0 or int(lengths.min()) < 1:
            raise ValueError(
                f"The lengths of the clips sum to {int(lengths.sum())}, but there are "
                f"{len(frames_NHW3)} frames."
            )
        self.frames = frames_NHW3
        self.lengths = lengths
        self.starts = np.cumsum(lengths) - lengths
        self.frames_per_clip, self.rng = frames_per_clip, np.random.default_rng(seed)

    def draw(self, batch_size: int) -> Tensor:
        """Normalised clips [B, 3, F, H, W]."""
        rows = []
        for episode in self.rng.integers(len(self.lengths), size=batch_size):
            length = int(self.lengths[episode])
            first = int(self.rng.integers(length))
            count = int(self.rng.integers(1, length - first + 1))
            picked = frame_indices(num_frames=count, frames_per_clip=self.frames_per_clip)
            rows.append(self.frames[self.starts[episode] + first + picked])
        video = torch.from_numpy(np.stack(rows)).permute(0, 4, 1, 2, 3).float()
        return normalise(video)


@dataclass(frozen=True)
class Clips:
    """Concatenated episodes: frames uint8 [N, H, W, 3], and length, success and task of each."""

    frames_NHW3: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    success: NDArray[np.bool_]
    tasks: NDArray[np.str_]


def load_clips(path: Path) -> Clips:
    """The clips in an npz file, or in all npz files of a folder.

    Raises:
        FileNotFoundError: No npz there.
        ValueError: A file without `frames`, `lengths`, `success` and `tasks`.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise FileNotFoundError(
            f"No clips (.npz) at {path}; make them with python -m benchmarks.collect_clips."
        )
    columns: dict[str, list[NDArray[Any]]] = {
        "frames": [],
        "lengths": [],
        "success": [],
        "tasks": [],
    }
    for file in files:
        with np.load(file) as data:
            missing = sorted(set(columns) - set(data.files))
            if missing:
                raise ValueError(
                    f"{file} has no array {missing[0]!r}; it has {', '.join(sorted(data.files))}."
                )
            for name, parts in columns.items():
                parts.append(data[name])
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Clips(
        joined["frames"],
        joined["lengths"].astype(np.int64),
        joined["success"].astype(bool),
        joined["tasks"].astype(str),
    )


def train(
    *,
    sampler: ClipSampler,
    model_config: VideoTransformerConfig,
    config: TrainingConfig,
    report_every: int = 50,
) -> tuple[VideoTransformer, list[float]]:
    """Train and return the averaged encoder, and the loss of each step."""
    torch.manual_seed(config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    encoder = VideoTransformer(model_config)
    predictor = Predictor(
        encoder_width=model_config.width,
        width=config.predictor_width,
        depth=config.predictor_depth,
        num_heads=model_config.num_heads,
        grid=model_config.grid,
    )
    target = copy.deepcopy(encoder).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        _parameter_groups(encoder, predictor, weight_decay=config.weight_decay),
        lr=config.learning_rate,
    )
    losses: list[float] = []
    started = time.perf_counter()
    masks = (*MULTI_BLOCK, FutureMask(tubelets=model_config.grid[0] // 2))
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step=step, config=config)
        loss = predictive_loss(
            encoder=encoder,
            target=target,
            predictor=predictor,
            video=sampler.draw(config.batch_size),
            mask=masks[step % len(masks)],
            generator=generator,
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *predictor.parameters()], 1.0)
        optimizer.step()
        update_average(
            target,
            encoder,
            momentum=config.ema_start + (config.ema_end - config.ema_start) * step / config.steps,
        )
        losses.append(loss.item())
        if (step + 1) % report_every == 0:
            mean = np.mean(losses[-report_every:])
            seconds = time.perf_counter() - started
            print(
                f"step {step + 1}/{config.steps}  loss {mean:.4f}  {seconds:.0f} s", file=sys.stderr
            )
    return target, losses


def predictive_loss(
    *,
    encoder: VideoTransformer,
    target: VideoTransformer,
    predictor: Predictor,
    video: Tensor,
    mask: BlockMask | FutureMask,
    generator: torch.Generator,
) -> Tensor:
    """Mean absolute error between predicted latents of hidden tokens and the target encoder's
    channel-normalised latents.
    """
    context_BC, target_BM = sample_masks(
        mask, batch_size=len(video), grid=encoder.config.grid, generator=generator
    )
    with torch.no_grad():
        wanted = functional.layer_norm(target(video), (encoder.config.width,))
    predicted = predictor(
        encoder(video, keep_BN=context_BC), context_BC=context_BC, target_BM=target_BM
    )
    return functional.l1_loss(predicted, select_tokens(wanted, target_BM))


def learning_rate(*, step: int, config: TrainingConfig) -> float:
    """Linear warm-up, then half a cosine to a hundredth."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def update_average(target: VideoTransformer, encoder: VideoTransformer, *, momentum: float) -> None:
    """target = momentum * target + (1 - momentum) * encoder."""
    for averaged, current in zip(target.parameters(), encoder.parameters(), strict=True):
        averaged.lerp_(current, 1.0 - momentum)


def _parameter_groups(*modules: torch.nn.Module, weight_decay: float) -> list[dict[str, object]]:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {
            "params": [p for p in parameters if p.ndim <= 1],
            "weight_decay": 0.0,
        },  # biases and norms, as V-JEPA 2
    ]


def save_encoder(
    folder: Path,
    *,
    model: VideoTransformer,
    pooling: str,
    training: dict[str, object],
    readout: ReadOut | None = None,
) -> None:
    """Write `model.safetensors` and `config.json` (shape, pooling, and training settings);
    `pooling` is a name or "readout".
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        **model.state_dict(),
        **(
            {f"readout.{name}": value for name, value in readout.state_dict().items()}
            if readout
            else {}
        ),
    }
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors"
    )
    config = {"model": asdict(model.config), "pooling": pooling, "training": training}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Train encoder and read-out according to the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "clips", type=Path, help="npz from benchmarks.collect_clips, or a folder of them"
    )
    parser.add_argument("--output", type=Path, default=Path("assets/vjepa_tiny"))
    parser.add_argument("--steps", type=int, default=TrainingConfig.steps)
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # more threads would add in another order and give other weights
    config = TrainingConfig(steps=arguments.steps, seed=arguments.seed)
    readout_config = ReadOutConfig()
    started = time.perf_counter()
    clips = load_clips(arguments.clips)
    sampler = ClipSampler(
        frames_NHW3=clips.frames_NHW3,
        lengths=clips.lengths,
        frames_per_clip=TINY.frames_per_clip,
        seed=config.seed,
    )
    model, losses = train(sampler=sampler, model_config=TINY, config=config)
    features_NF = prefix_features(model=model, frames_NHW3=clips.frames_NHW3, lengths=clips.lengths)
    index = EpisodeIndex(lengths=clips.lengths, success=clips.success, tasks=clips.tasks)
    readout = train_readout(
        features_NF=features_NF, index=index, config=readout_config, seed=config.seed
    )
    training = {
        "command": f"python -m vjepa.train_tiny {arguments.clips.name} --steps {config.steps} "
        f"--seed {config.seed}",
        "encoder": asdict(config),
        "readout": asdict(readout_config),
        "clips": len(clips.lengths),
        "tasks": sorted(index.ends_of),
        "final_loss": round(float(np.mean(losses[-50:])), 4),
        "minutes": round((time.perf_counter() - started) / 60, 1),
    }
    save_encoder(
        arguments.output, model=model, pooling="readout", readout=readout, training=training
    )


if __name__ == "__main__":
    main()
