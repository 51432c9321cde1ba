"""The policy: which model, how it acts, how it is updated. `AlgorithmArguments` is importable from
here, as the documents have it.
"""

from dataclasses import dataclass, field
from typing import Any

from siirl.params.algorithm_args import KL_ESTIMATORS, AlgorithmArguments
from siirl.params.embodied_args import EmbodiedArguments
from siirl.params.fields import described, option
from siirl.params.policies import LANGUAGE_MODEL, POLICIES
from siirl.params.reward_args import OWN_REWARD

__all__ = [
    "ActorArguments",
    "ActorRolloutRefArguments",
    "AlgorithmArguments",
    "ImportanceArguments",
    "LoraArguments",
    "ModelArguments",
    "OptimizerArguments",
    "RefArguments",
    "RewardModelArguments",
    "RolloutArguments",
]

POLICY_LOSSES = (
    *(
        "vanilla",
        "decoupled",
        "gspo",
        "gspo_token",
        "gmpo",
        "gpg",
        "cpgd",
        "cispo",
        "sapo",
        "clip_cov",
        "kl_cov",
    ),
)
LOSS_AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
IMPORTANCE_LEVELS, IMPORTANCE_BOUNDS = ("token", "sequence", "geometric"), ("truncate", "mask")
FLAT_SCHEDULES, FALLING_SCHEDULES = (
    ("constant", "constant_with_warmup"),
    ("cosine_with_warmup", "linear_with_warmup"),
)
NO_HUB_CODE = "a policy of one's own is named by actor_rollout_ref.model.policy=module:name"
NO_RECOMPUTING = (
    "of model=openvla_oft it is actor_rollout_ref.model.options.recompute, and a tiny "
    "policy's activations are small"
)
FIXED_LENGTHS = "the rows of robots are counted by micro_batch_size"
NO_LM_ENGINE = "robots act through the training module itself"


@dataclass
class LoraArguments:
    """Adapters of low rank, which are trained instead of the weights (Hu et al. 2021); the model
    below them is the KL's reference.
    """

    rank: int = option(0, "Rank of the adapters; 0: none, all weights are trained.", minimum=0)
    alpha: float = option(
        32.0, "What the adapters add is scaled by alpha / rank.", why="peft's usual", above=0
    )
    target_modules: tuple[str, ...] | None = option(
        None,
        "Names of the linear layers that get one; null: all but a language model's head.",
        why="QLoRA, section 4",
        unique=True,
        filled=True,
    )
    dropout: float = option(
        0.0,
        "Must be 0: with dropout the ratio of an unchanged policy to itself would not be 1.",
        minimum=0,
        maximum=0,
    )


@dataclass
class ModelArguments:
    """The policy's class and weights."""

    policy: str = option(
        "tiny_vla",
        f"Policy: {', '.join((*POLICIES, LANGUAGE_MODEL))}, or `module:name` of your own.",
        why="ships with the repository",
    )
    path: str | None = option(
        None,
        "Policy folder (config.json, model.safetensors); null: new weights.",
        why="env= chooses what fits it",
    )
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata=described(
            "Keyword arguments of the policy class, for example {bins: 64, chunk_length: 8}."
        ),
    )
    dtype: str = option(
        "float32",
        "Type of the forward and backward passes; weights that are trained stay float32.",
        why="a CPU is not faster in bfloat16",
        choices=("float32", "bfloat16"),
    )
    trust_remote_code: bool = option(
        False,
        "Run code that comes with a model.",
        why="safe unless asked for",
        text_only=NO_HUB_CODE,
    )
    gradient_checkpointing: bool = option(
        False,
        "Compute a block's activations again in the backward pass instead of keeping them.",
        why="a third more work, for models that need the memory",
        text_only=NO_RECOMPUTING,
    )
    lora: LoraArguments = field(default_factory=LoraArguments)
    model_type: str = option(
        "", "Old name: `embodied` or `text`; env= chooses it now.", derived=True
    )


@dataclass
class OptimizerArguments:
    """AdamW and its schedule."""

    lr: float = option(
        1e-6,
        "Learning rate after warm-up.",
        why="DeepSeekMath (arXiv 2402.03300), section 4.2, for 7B; model= sets what fits",
        above=0,
    )
    weight_decay: float = option(0.01, "Decay of AdamW.", why="torch.optim.AdamW's", minimum=0)
    scheduler: str = option(
        "cosine_with_warmup",
        "Schedule of the learning rate; of your own: from the progress after warm-up, 0 to 1, "
        "to a factor.",
        why="noise of the last steps does not stay; configs/model/tiny_lm.yaml compares it with "
        "a constant rate",
        choices=FLAT_SCHEDULES + FALLING_SCHEDULES,
        plug_in=True,
    )
    warmup_ratio: float = option(
        0.1,
        "Share of all optimiser steps that warm up.",
        why="Adam's moments average few gradients at first",
        minimum=0,
        maximum=1,
    )
    warmup_steps: int | None = option(
        None, "Optimiser steps that warm up; null: by warmup_ratio.", minimum=0
    )
    beta1: float = option(
        0.9, "First-moment decay of AdamW.", why="Adam's", minimum=0, maximum=0.999999
    )
    beta2: float = option(
        0.999, "Second-moment decay of AdamW.", why="Adam's", minimum=0, maximum=0.999999
    )


@dataclass
class ImportanceArguments:
    """Importance weights `pi_old / pi_rollout` on the policy loss, for samples of an older policy
    or of another engine.
    """

    level: str | None = option(
        None,
        "One weight a token, a sequence (product), or its geometric mean; null: none.",
        choices=IMPORTANCE_LEVELS,
    )
    bound: str = option(
        "truncate",
        "`truncate` holds large weights at high, `mask` drops what is outside.",
        choices=IMPORTANCE_BOUNDS,
    )
    high: float = option(
        2.0, "Largest weight.", why="the field's usual threshold; IcePop takes 5", minimum=1
    )
    low: float = option(
        0.0,
        "Smallest weight that bound=mask keeps.",
        why="0: no lower bound; IcePop takes 0.5",
        minimum=0,
        maximum=1,
    )


@dataclass
class ActorArguments:
    """The policy's update."""

    strategy: str = option(
        "fsdp",
        "How weights are spread over ranks.",
        why="FSDP2; one rank is left plain",
        choices=("fsdp",),
        refused={"megatron": "weights are sharded by FSDP2; take fsdp"},
    )
    loss: str = option(
        "vanilla", "Policy loss.", why="PPO's clipped ratio", choices=POLICY_LOSSES, plug_in=True
    )
    loss_agg_mode: str | None = option(
        None,
        "How token losses become one; null: as the loss is defined.",
        choices=LOSS_AGGREGATIONS,
        plug_in=True,
    )
    loss_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=described(
            "Options that only this loss has, for example {tau_neg: 1.05}; docs/algorithms.md "
            "lists them."
        ),
    )
    importance: ImportanceArguments = field(default_factory=ImportanceArguments)
    clip_ratio: float = option(
        0.2,
        "Clip range of the probability ratio on both sides: where it is set, a pipeline's "
        "clip_ratio_high gives way. pipeline=dapo has two "
        "bounds of its own.",
        why="Schulman et al. 2017",
        above=0,
    )
    clip_ratio_low: float | None = option(
        None, "Lower clip range; null: clip_ratio, or the loss's own.", above=0, maximum=1
    )
    clip_ratio_high: float | None = option(
        None, "Upper clip range; null: clip_ratio, or the loss's own.", above=0
    )
    clip_ratio_c: float | None = option(
        3.0,
        "Dual clip: bound of the ratio at negative advantages; null: none.",
        why="Ye et al. 2020",
        above=1,
    )
    entropy_coef: float = option(
        0.0,
        "Weight of the entropy bonus; below 0 it is a cost, which sharpens the policy.",
        why="binned actions grow noisy by themselves",
    )
    ppo_epochs: int = option(
        1,
        "Passes over the samples of a step.",
        why="a second one is off-policy; DeepSeekMath, section 4.2, makes one",
        minimum=1,
    )
    ppo_mini_batch_size: int = option(
        256,
        "Prompts of one optimiser step, over all ranks; times actor_rollout_ref.rollout.n gives "
        "the trajectories.",
        why="two optimiser steps on data.train_batch_size: few, so that the ratio stays near 1",
        minimum=1,
    )
    micro_batch_size: int = option(
        8,
        "Trajectories of one forward pass on a rank; the gradient does not depend on it.",
        minimum=1,
    )
    micro_batch_tokens: int | None = option(
        None,
        "Tokens of one forward pass on a rank, prompts included, instead of micro_batch_size; "
        "null: by rows.",
        why="rows of a few tokens need none",
        minimum=1,
        text_only=FIXED_LENGTHS,
    )
    max_grad_norm: float | None = option(
        1.0,
        "Clip the gradient to this norm; null: do not.",
        why="verl's and TRL's; bounds what an outlier adds to Adam's moments",
        above=0,
    )
    use_kl_loss: bool = option(
        False, "Add the KL to the reference policy to the loss.", why="DAPO and SRPO train without"
    )
    kl_loss_coef: float = option(
        0.001,
        "Weight of the KL in the loss.",
        why="DeepSeekMath uses 0.04, the field less",
        minimum=0,
    )
    kl_loss_type: str = option(
        "k3",
        "Estimator of the KL in the loss.",
        why="k1 has no useful gradient there",
        choices=KL_ESTIMATORS,
        plug_in=True,
    )
    optim: OptimizerArguments = field(default_factory=OptimizerArguments)


@dataclass
class RolloutArguments:
    """How the policy acts."""

    name: str = option(
        "embodied",
        "Engine that acts.",
        choices=("embodied", "hf", "vllm"),
        refused={"sglang": "text is generated by rollout=vllm or rollout=hf; take one of these"},
    )
    n: int = option(
        8,
        "Rollouts of a prompt: the group size.",
        why="SimpleVLA-RL's (arXiv 2509.09674) and TRL's",
        minimum=1,
        maximum=10_000,
    )
    temperature: float = option(
        1.0,
        "Divides the logits, when acting and when training.",
        why="the policy as it is",
        above=0,
    )
    top_p: float = option(
        1.0,
        "Sample from the smallest set with this probability.",
        why="less biases the ratio",
        above=0,
        maximum=1,
    )
    top_k: int | None = option(
        None,
        "Sample from so many most likely tokens; null: from all.",
        why="fewer bias the ratio",
        minimum=1,
        text_only=NO_LM_ENGINE,
    )
    workflow: str | None = option(
        None,
        "How an episode runs, `module:name` of your own "
        "siirl.engine.rollout.workflow.RolloutWorkflow; null: siirl's.",
        text_only=NO_LM_ENGINE,
    )
    stop: tuple[str, ...] = option(
        (),
        "Texts that end a turn of the model, besides its end token.",
        unique=True,
        text_only=NO_LM_ENGINE,
    )
    mode: str = option(
        "sync",
        "`sync`: rollouts with the weights of the step.",
        choices=("sync", "async"),
        text_only=NO_LM_ENGINE,
    )
    tensor_model_parallel_size: int = option(
        1, "GPUs of one language-model engine.", minimum=1, text_only=NO_LM_ENGINE
    )
    kv_cache_gib: float = option(
        1.0,
        "Memory of rollout=vllm for keys and values, in GiB.",
        why="37 000 tokens of Qwen2.5 1.5B",
        above=0,
        text_only=NO_LM_ENGINE,
    )
    max_log_prob_gap: float | None = option(
        None,
        "Largest mean gap between acting and training log-probs of the same weights before the "
        "run stops; null: 1e-4 (bfloat16: 1e-2, and "
        "3e-2 with vLLM).",
        above=0,
    )


@dataclass
class RefArguments:
    """The reference policy of the KL; not in memory when no KL is used."""

    path: str | None = option(
        None,
        "Its policy folder; null: the policy's own weights at the start.",
        why="the KL then measures drift",
    )


@dataclass
class ActorRolloutRefArguments:
    """The policy: model, update, acting, reference, videos."""

    model: ModelArguments = field(default_factory=ModelArguments)
    actor: ActorArguments = field(default_factory=ActorArguments)
    rollout: RolloutArguments = field(default_factory=RolloutArguments)
    ref: RefArguments = field(default_factory=RefArguments)
    embodied: EmbodiedArguments = field(default_factory=EmbodiedArguments)


@dataclass
class RewardModelArguments:
    """A learned reward model for text."""

    path: str | None = option(
        None,
        "A sequence classifier with one output, which reward.name=model (or a part of "
        "reward.functions) scores with; a folder or a hub id.",
        text_only=OWN_REWARD,
    )
    micro_batch_size: int = option(
        16,
        "Conversations of one forward pass.",
        why="little memory without gradients",
        minimum=1,
        text_only=OWN_REWARD,
    )
    trust_remote_code: bool = option(
        False,
        "Run Python code that its folder or hub id brings.",
        why="safety",
        text_only=OWN_REWARD,
    )
