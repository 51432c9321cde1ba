"""The reward's video encoder at its largest released size."""

import time

import numpy as np
import torch

from siirl.engine.training.device_peaks import peak_of
from siirl.gpu_checks.check import Trial
from siirl.models.flops import video_flops
from vjepa.encoders import random_network, wrap
from vjepa.latent_encoder import EncoderPlacement
from vjepa.release_checkpoint import ARCHITECTURES
from vjepa.vision_transformer import VideoTransformer


def clips(trial: Trial) -> None:
    """Clips/s of a rank's encoder, which is offloaded before and after."""
    if trial.on_gpu:
        with torch.device(trial.device):
            network = VideoTransformer(ARCHITECTURES["vitg"])
        network = network.to(trial.dtype).cpu()
    else:
        network = random_network()
    config = network.config
    placement = EncoderPlacement(device=trial.device, dtype=trial.dtype, offload=trial.on_gpu)
    encoder = wrap(network, name="random", pooling="last_change", crop=True, placement=placement)
    shape = (config.frames_per_clip, config.image_size, config.image_size, 3)
    count = 16 if trial.on_gpu else 2
    videos = [
        np.random.default_rng(row).integers(0, 256, shape, dtype=np.uint8) for row in range(count)
    ]
    encoder.encode(videos[:1])
    trial.forget_peak()
    begin = time.perf_counter()
    embeddings = encoder.encode(videos)
    seconds = time.perf_counter() - begin
    flops = count * video_flops(config)
    peak = peak_of(trial.device, trial.dtype)
    trial.note(
        clips_per_s=count / seconds, tflops=flops / seconds / 1e12, peak_bytes=trial.peak_bytes()
    )
    if peak is not None:
        trial.note(share_of_peak=flops / seconds / peak)
    trial.require(bool(np.isfinite(embeddings).all()), "embeddings are not finite")
    left = torch.cuda.memory_allocated(trial.device) if trial.on_gpu else 0
    trial.require(left < 100e6, f"{left / 1e6:.0f} MB are still on the device after the call")
