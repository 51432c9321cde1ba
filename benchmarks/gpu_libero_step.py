"""A step of SRPO on LIBERO with OpenVLA-OFT 7B and V-JEPA 2 ViT-g on one GPU: where its time goes.

    python -m benchmarks.gpu_libero_step FOLDER --prompts 4 --steps 2

Policy and encoder have random weights of the published shapes and are written to FOLDER in the
published layouts (19 GB). `siirl train` with `trainer=gpu_libero_one` then reads them as it reads
downloaded ones. Random frames stand for the demonstrations, so that failures get a reward. Assets
are stand-ins. A step has fewer prompts than the preset, and one optimiser step; rollouts and
update grow with the prompts. The result has the second step and later ones.

On a CPU (`--small`) the models are small and the encoder is the shipped one. Left out: learning,
which random weights cannot show.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from benchmarks.measured_on import describe_machine
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.shapes import ACTIONS, openvla, openvla_config
from siirl.train import main as train
from vjepa.release_checkpoint import ARCHITECTURES
from vjepa.vision_transformer import VideoTransformer

RESULT = Path(__file__).parent / "results" / "gpu" / "libero_step.json"
TASKS = ("object/1", "object/3")
KEPT = ("time/", "perf/", "memory/", "env/steps", "policy/", "actor/", "rollout/log_prob_gap")
IMAGE = 256  # pixels a side, as env=libero renders for this policy


def main() -> None:
    """Write the models, train, and write the result."""
    flags = _flags()
    flags.folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if flags.small else "cuda")
    settings = [*job(flags), *flags.settings]
    write_clips(flags.folder / "clips.npz")  # first: it needs LIBERO, which may be missing
    write_policy(flags.folder / "policy", device)
    if not flags.small:
        write_encoder(flags.folder / "vitg.pt", device)
        settings.append(f"reward.encoder={flags.folder / 'vitg.pt'}")
    if not flags.small:  # the run must find the GPU as empty as a new process would
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    status = train(settings)
    if status != 0:
        sys.exit(status)
    (metrics,) = (flags.folder / "run").glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row for row in rows if row["step"] > 1]
    result = {
        "command": shlex.join(["python", "-m", "benchmarks.gpu_libero_step", *sys.argv[1:]]),
        "device": "cpu" if flags.small else torch.cuda.get_device_name(),
        "machine": describe_machine(),
        "prompts": flags.prompts,
        "steps": [kept(row) for row in steps],
    }
    flags.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["steps"], indent=1))


def job(flags: argparse.Namespace) -> list[str]:
    """Settings of the run."""
    settings = [
        *("pipeline=embodied_srpo", "env=libero", "model=openvla_oft", "trainer=gpu_libero_one"),
        *(f"cluster={flags.cluster}", "env.assets=stand_in", f"env.tasks=[{','.join(TASKS)}]"),
        f"actor_rollout_ref.model.path={flags.folder / 'policy'}",
        f"reward.demonstrations={flags.folder / 'clips.npz'}",
        f"data.train_batch_size={flags.prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={flags.prompts}",
        f"trainer.total_steps={flags.steps}",
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null"),
        *(f"trainer.output_dir={flags.folder}", "trainer.experiment_name=run"),
    ]
    if flags.small:
        settings += [
            *("actor_rollout_ref.model.lora.rank=1", "actor_rollout_ref.model.dtype=float32"),
            *("actor_rollout_ref.rollout.n=2", "env.num_servers=1", "env.envs_per_server=2"),
            *("env.max_episode_steps=16", "trainer.gpu_memory_gib=null"),
        ]
    return settings


def write_policy(folder: Path, device: torch.device) -> None:
    """Random weights in bfloat16, as OpenVLA-OFT publishes its own."""
    trial = Trial(device=device, ends_at=float("inf"), file=folder)
    folder.mkdir()
    policy = openvla(trial).to(torch.bfloat16)
    weights = {
        name: tensor
        for name, tensor in policy.state_dict().items()
        if not name.startswith("proprio_projector")  # published in a separate file
    }
    save_torch_state_dict(weights, folder)
    normalisation = {"means": [[0.5] * 3] * 2, "stds": [[0.5] * 3] * 2}
    ranges = {"q01": [-1.0] * ACTIONS, "q99": [1.0] * ACTIONS, "mask": [True] * ACTIONS}
    config = {"model_type": "openvla", "image_sizes": [224, 224], "pad_to_multiple_of": 64}
    files: dict[str, Any] = {
        "config.json": config | openvla_config(trial),
        "preprocessor_config.json": normalisation,
        "dataset_statistics.json": {"libero_object_no_noops": {"action": ranges}},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    tokenizer().save(str(folder / "tokenizer.json"))


def tokenizer() -> Tokenizer:
    """A stand-in for Llama's: every word is unknown, which is its token 0."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def write_encoder(file: Path, device: torch.device) -> None:
    """Random weights of ViT-g as the release's file has them."""
    with torch.device(device):
        network = VideoTransformer(ARCHITECTURES["vitg"])
    torch.save({"target_encoder": network.state_dict()}, file)


def write_clips(file: Path) -> None:
    """Random frames as two demonstrations of each task."""
    from envs.registry import env_spec

    random = np.random.default_rng(0)
    tasks = env_spec("libero", assets="stand_in", tasks=list(TASKS)).tasks
    clips: dict[str, Any] = {
        f"{task}/{number:03d}": random.integers(0, 256, (20, IMAGE, IMAGE, 3), dtype=np.uint8)
        for task in tasks
        for number in range(2)
    }
    np.savez_compressed(file, allow_pickle=False, **clips)


def kept(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a step that say where its time and memory go."""
    return {name: round(value, 4) for name, value in row.items() if name.startswith(KEPT)}


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One GPU step of SRPO on LIBERO.")
    parser.add_argument("folder", type=Path, help="for models and run; 19 GB")
    parser.add_argument("--prompts", type=int, default=4, help="start states of a step")
    parser.add_argument("--steps", type=int, default=2, help="the first one is not measured")
    parser.add_argument(
        "--cluster", default="ray", help="ray: simulators in processes of their own; or local"
    )
    parser.add_argument("--small", action="store_true", help="small models on a CPU")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("settings", nargs="*", help="further settings of the run, key=value")
    return parser.parse_intermixed_args()  # settings may follow options


if __name__ == "__main__":
    main()
