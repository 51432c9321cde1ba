"""Memory of a process as the kernel counts it, and models of a chosen size to measure it with.

Large blocks go back to the kernel at once (`RETURNED_AT_ONCE`), so that resident memory is what the
process holds. Left out: pages of files, which the readers of this project do not map.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

MIB = 1024**2
# glibc keeps freed blocks of less than a threshold that it raises to 32 MiB; these keep it low.
RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
RESET_PEAK = "5"  # man 5 proc, /proc/PID/clear_refs: the peak becomes the present size


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """Largest resident memory since `reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Begin a new peak."""
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def share_bytes(pid: int) -> int:
    """Resident memory of a process, with its share of each page that several processes map (PSS);
    0 once it has ended.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return (
        int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) * 1024
    )


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}.")


def set_one_thread() -> None:
    """Compute on one thread: two that share a busy core wait for each other."""
    torch.set_num_threads(1)


def qwen_config(*, layers: int, width: int, hidden: int, tied: bool = False) -> dict[str, Any]:
    """config.json of a model of Qwen2.5's architecture, with heads of 64 and its own vocabulary."""
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 16_384,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 128,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
    }


def write_model(folder: Path, config: dict[str, Any]) -> int:
    """Write a causal language model of random weights, one tensor at a time.

    Returns:
        The number of its parameters.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    _write_weights(folder / "model.safetensors", shapes)
    return sum(math.prod(shape) for shape in shapes.values())


def _write_weights(file: Path, shapes: dict[str, torch.Size]) -> None:
    from siirl.engine.training.tensor_files import write_tensors_in_turn

    def drawn() -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            values = 0.02 * torch.randn(shape, generator=generator)
            yield name, (values + ("norm" in name)).bfloat16()

    stored = {name: (torch.bfloat16, shape) for name, shape in shapes.items()}
    write_tensors_in_turn(file, stored, drawn())
