"""The checks, in the order in which they run: prerequisites of others come first."""

from siirl.gpu_checks.check import Check

_HERE = "siirl.gpu_checks"
_OF_A_RUN = ("gymnasium", "hydra", "psutil", "rich", "torchdata")  # which a run imports
CHECKS = (
    Check(
        "device", "device, driver, matrix products", f"{_HERE}.device_speed:device", at_most_s=30
    ),
    Check(
        "attention",
        "attention with a dense mask, and without",
        f"{_HERE}.device_speed:masked_attention",
        20,
    ),
    Check(
        "checksum",
        "checksum equal on CPU and device",
        f"{_HERE}.weight_transfer:equal_checksums",
        30,
    ),
    Check(
        "reduction",
        "NCCL (gloo on a CPU) and FSDP2: gradient and reduction factor on one rank and on all",
        f"{_HERE}.reduction:reduction",
        60,
    ),
    Check(
        "updates",
        "GRPO and SRPO updates of the shipped models, compared with the CPU",
        f"{_HERE}.updates:as_on_cpu",
        45,
    ),
    Check("log_prob_gap", "acting and training log-probs", f"{_HERE}.agreement:log_prob_gap", 45),
    Check("determinism", "the same update twice", f"{_HERE}.updates:twice", 30),
    Check(
        "checkpoint",
        "a resumed run has the weights of one that went on",
        f"{_HERE}.checkpoints:resumed",
        45,
    ),
    Check(
        "sharded_update",
        "all GPUs: an update through FSDP2, compared with one rank",
        f"{_HERE}.sharded:sharded_update",
        75,
    ),
    Check(
        "sharded_sync",
        "all GPUs: sharded weights to another process and to acting copies",
        f"{_HERE}.sharded_weights:sharded_sync",
        60,
        shares_memory=True,
    ),
    Check(
        "sharded_checkpoint",
        "all GPUs: a checkpoint, read on one rank and on half of them",
        f"{_HERE}.sharded_weights:sharded_checkpoint",
        75,
    ),
    Check("sync", "weights to the acting copy", f"{_HERE}.weight_transfer:to_acting_copy", 30),
    Check(
        "sync_process",
        "weights to another process",
        f"{_HERE}.weight_transfer:to_process",
        60,  # on a new machine two processes import torch from files that are not cached
        shares_memory=True,
    ),
    Check(
        "sync_vllm",
        "weights to vLLM",
        f"{_HERE}.weight_transfer:to_vllm",
        120,  # vLLM compiles its passes first
        needs=("vllm", "gymnasium"),
        shares_memory=True,
    ),
    Check(
        "pictures",
        "MuJoCo image, its hash, frames/s of 1 to 16 simulators",
        f"{_HERE}.pictures:frames",
        45,
        needs=("mujoco",),
    ),
    Check("video_encoder", "V-JEPA 2 ViT-g, clips/s", f"{_HERE}.video:clips", 45),
    Check(
        "vla_acting",
        "OpenVLA-OFT 7B: actions/s at batch 1 to 64, compared with the bare network",
        f"{_HERE}.vla_model:acting",
        60,
    ),
    Check(
        "vla_lora",
        "OpenVLA-OFT 7B: LoRA update",
        f"{_HERE}.vla_model:lora_update",
        75,
        needs=("peft",),
    ),
    Check("vla_full", "OpenVLA-OFT 7B: full update", f"{_HERE}.vla_model:full_update", 75),
    Check("text_tokens", "Qwen2.5-7B: generation tokens/s", f"{_HERE}.text_model:generation", 60),
    Check(
        "text_update",
        "Qwen2.5-7B: GRPO update, LoRA",
        f"{_HERE}.text_model:update_adapters",
        75,
        needs=("peft",),
    ),
    Check(
        "text_full",
        "Qwen2.5-7B: GRPO update of all weights",
        f"{_HERE}.text_model:update_all",
        75,
    ),
    Check(
        "grpo_step",
        "Qwen2.5-7B or 1.5B: whole GRPO steps as a run takes them",
        f"{_HERE}.grpo_step:step",
        150,
        needs=_OF_A_RUN,
    ),
    Check(
        "grpo_step_vllm",
        "the same with vLLM",
        f"{_HERE}.grpo_step:step_with_vllm",
        210,  # vLLM compiles its passes first
        needs=("vllm", *_OF_A_RUN),
        shares_memory=True,
    ),
)
