"""Keys of the policy: model, acting, update. Re-exports `AlgorithmArguments`, as siiRL does."""

from dataclasses import dataclass, field
from typing import Any

from siirl.params.algorithm_args import KL_ESTIMATORS, AlgorithmArguments
from siirl.params.embodied_args import EmbodiedArguments
from siirl.params.fields import described, option
from siirl.params.policies import LANGUAGE_MODEL, POLICIES
from siirl.params.registered_names import LOSSES
from siirl.params.reward_args import OWN_REWARD
from siirl.params.rollout_args import RolloutArguments

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

REMOTE_CODE = "Run Python code that comes with the model."
REMOTE_CODE_REASON = "that code can do whatever your account can"
LOSS_AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
RATIO_LEVELS = ("token", "decision")
IMPORTANCE_LEVELS = ("token", "sequence", "geometric")
IMPORTANCE_BOUNDS = ("truncate", "mask")
FLAT_SCHEDULES = ("constant", "constant_with_warmup")
FALLING_SCHEDULES = ("cosine_with_warmup", "linear", "linear_with_warmup")
NO_HUB_CODE = "name your own policy by actor_rollout_ref.model.policy=module:name"
NO_RECOMPUTING = (
    "model=openvla_oft has actor_rollout_ref.model.options.recompute, and a tiny policy has "
    "small activations"
)
FIXED_LENGTHS = "robot jobs set micro_batch_size"


@dataclass
class LoraArguments:
    """Low-rank adapters, trained instead of the weights (Hu et al. 2021).

    The model without adapters is the reference policy of the KL.
    """

    rank: int = option(0, "Rank of the adapters; 0: none, all weights are trained.", minimum=0)
    alpha: float = option(
        32.0, "Scale of the adapters' output: alpha / rank.", why="usual with peft", above=0
    )
    target_modules: tuple[str, ...] | None = option(
        None,
        "Names of the adapted linear layers; null: all except a language model's head.",
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
        "Policy folder (config.json, model.safetensors), or hf://owner/name; null: new weights.",
        why="env= chooses a fitting folder",
        path=True,
    )
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata=described(
            "Keyword arguments of the policy class, for example {bins: 64, chunk_length: 8}."
        ),
    )
    dtype: str = option(
        "float32",
        "Type of forward and backward passes; trained weights stay float32.",
        why="a CPU is not faster in bfloat16",
        choices=("float32", "bfloat16"),
    )
    trust_remote_code: bool = option(
        False,
        REMOTE_CODE,
        why=REMOTE_CODE_REASON,
        text_only=NO_HUB_CODE,
    )
    gradient_checkpointing: bool = option(
        False,
        "Recompute activations of policy and critic in the backward pass instead of storing them.",
        why="saves memory for a third more compute",
        text_only=NO_RECOMPUTING,
    )
    lora: LoraArguments = field(default_factory=LoraArguments)
    model_type: str = option(
        "",
        "Old key: `embodied` or `text`; derived from actor_rollout_ref.model.policy.",
        derived=True,
    )


LARGEST_RATE = 10.0
"""Limit of the rate: an Adam update changes a weight by about the rate, and weights are a few units
at most."""


@dataclass
class OptimizerArguments:
    """AdamW and its schedule."""

    lr: float = option(
        1e-6,
        "Learning rate after warm-up.",
        why="DeepSeekMath (arXiv 2402.03300), section 4.2, for 7B; model= sets what fits",
        above=0,
        maximum=LARGEST_RATE,
    )
    weight_decay: float = option(0.01, "Decay of AdamW.", why="torch.optim.AdamW's", minimum=0)
    scheduler: str = option(
        "cosine_with_warmup",
        "Learning-rate schedule; a custom one maps progress after warm-up (0 to 1) to a factor.",
        why="the noise of the last steps averages out; configs/model/tiny_lm.yaml compares it "
        "with a constant rate",
        choices=FLAT_SCHEDULES + FALLING_SCHEDULES,
        plug_in=True,
    )
    warmup_ratio: float = option(
        0.1,
        "Share of all optimiser steps used for warm-up.",
        why="Adam's moments average few gradients at the start",
        minimum=0,
        maximum=1,
    )
    warmup_steps: int | None = option(
        None, "Optimiser steps of warm-up; null: by warmup_ratio.", minimum=0
    )
    beta1: float = option(
        0.9, "First-moment decay of AdamW.", why="Adam's", minimum=0, maximum=0.999999
    )
    beta2: float = option(
        0.999, "Second-moment decay of AdamW.", why="Adam's", minimum=0, maximum=0.999999
    )
    eps: float = option(
        1e-8,
        "Added to the denominator of AdamW; implementations of PPO often have 1e-5.",
        why="Adam's",
        above=0,
        maximum=1,
    )


@dataclass
class ImportanceArguments:
    """Importance weights `pi_old / pi_rollout` for samples of an older policy or another engine."""

    level: str | None = option(
        None,
        "Level of the weights: per token, per sequence (product), or its geometric mean; null: "
        "none.",
        choices=IMPORTANCE_LEVELS,
    )
    bound: str = option(
        "truncate",
        "`truncate` clamps weights at high, `mask` drops tokens outside the bounds.",
        choices=IMPORTANCE_BOUNDS,
    )
    high: float = option(
        2.0, "Largest weight.", why="the usual threshold; IcePop uses 5", minimum=1
    )
    low: float = option(
        0.0,
        "Smallest weight that bound=mask keeps.",
        why="0: no lower bound; IcePop uses 0.5",
        minimum=0,
        maximum=1,
    )


@dataclass
class ActorArguments:
    """Update of the policy."""

    strategy: str = option(
        "fsdp",
        "Sharding of the weights over ranks.",
        why="FSDP2; a single rank is not sharded",
        choices=("fsdp",),
        refused={"megatron": "weights are sharded by FSDP2; choose fsdp"},
    )
    reshard_after_forward: bool = option(
        True,
        "Free a block's gathered weights after its forward pass, and gather them again for the "
        "backward pass. This needs several ranks, and applies to a critic too.",
        why="holds one block in memory instead of the whole model; false saves a third of the "
        "traffic",
    )
    reduce_once: bool = option(
        False,
        "Sum gradients over ranks after the last micro-batch of an optimiser step instead of after "
        "each. This needs several ranks, and applies to a critic too.",
        why="true keeps a whole gradient on each rank",
    )
    fsdp_size: int | None = option(
        None,
        "Ranks that share one copy of the weights, gradients and moments; each group of that "
        "size holds one copy. null: all ranks share one. This applies to a critic too.",
        why="takes the least memory; groups of one machine's ranks are faster on a slow network",
        minimum=1,
    )
    use_torch_compile: bool = option(
        False,
        "Compile the model's blocks for updates and log-probs (torch.compile), not for acting. The "
        "first step takes minutes more with a large model, and results differ by rounding.",
        why="a run pays for it at every start, also when it is resumed",
    )
    offload_optimizer: bool = option(
        False,
        "Keep Adam's moments, also a critic's, in host memory except during the optimiser's step.",
        why="it copies 8 bytes per trained weight there and back in each step",
    )
    loss: str = option(
        "vanilla", "Policy loss.", why="PPO's clipped ratio", choices=LOSSES, plug_in=True
    )
    loss_agg_mode: str | None = option(
        None,
        "Aggregation of token losses; null: the loss's own.",
        choices=LOSS_AGGREGATIONS,
        plug_in=True,
    )
    loss_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=described(
            "Options of this loss, for example {tau_neg: 1.05}; docs/algorithms.md lists them."
        ),
    )
    ratio_level: str = option(
        "token",
        "Level of the loss: decision has one probability ratio for a whole decision (a chunk of "
        "actions, all dimensions), the product of its tokens' ratios; its entropy is the sum over "
        "them.",
        why="SimpleVLA-RL's, for policies of action tokens",
        choices=RATIO_LEVELS,
    )
    importance: ImportanceArguments = field(default_factory=ImportanceArguments)
    clip_ratio: float = option(
        0.2,
        "Clip range of the probability ratio on both sides; setting it overrides a pipeline's "
        "clip_ratio_high. pipeline=dapo sets both bounds separately.",
        why="Schulman et al. 2017",
        above=0,
    )
    clip_ratio_low: float | None = option(
        None, "Lower clip range; null: clip_ratio, or the loss's default.", above=0, maximum=1
    )
    clip_ratio_high: float | None = option(
        None, "Upper clip range; null: clip_ratio, or the loss's default.", above=0
    )
    clip_ratio_c: float | None = option(
        3.0,
        "Dual clip: bound of the ratio at negative advantages; null: none.",
        why="Ye et al. 2020",
        above=1,
    )
    entropy_coef: float = option(
        0.0,
        "Weight of the entropy bonus; a negative weight penalises entropy.",
        why="binned actions are noisy without a bonus",
    )
    target_kl: float | None = option(
        None,
        "Target KL between the acting and the trained policy in an update, in nats per token: the "
        "learning rate is raised or lowered between updates. null: only the schedule sets it.",
        why="a schedule suffices for a tuned rate; docs/learning.md",
        above=0,
    )
    ppo_epochs: int = option(
        1,
        "Passes over the samples of a step.",
        why="a second pass is off-policy; DeepSeekMath, section 4.2, uses one",
        minimum=1,
    )
    ppo_mini_batch_size: int = option(
        256,
        "Prompts of one optimiser step, over all ranks; multiplied by actor_rollout_ref.rollout.n, "
        "it gives the trajectories. With actor_rollout_ref.rollout.n_steps it counts decisions.",
        why="two optimiser steps per data.train_batch_size; few steps keep the ratio near 1",
        minimum=1,
    )
    micro_batch_size: int = option(
        8,
        "Trajectories of one forward pass on a rank; does not change the gradient.",
        minimum=1,
    )
    micro_batch_tokens: int | None = option(
        None,
        "Tokens of one forward pass on a rank, prompts included, instead of micro_batch_size; "
        "null: by rows.",
        why="short rows need no token budget",
        minimum=1,
        text_only=FIXED_LENGTHS,
    )
    micro_batch_chunks: int | None = option(
        None,
        "Chunks of one forward pass on a rank, of any trajectories, instead of micro_batch_size; "
        "null: whole trajectories. Does not change the gradient; a loss or an aggregation that "
        "needs whole trajectories scores them a second time.",
        why="small policies have room for whole trajectories",
        minimum=1,
    )
    max_grad_norm: float | None = option(
        1.0,
        "Clip the gradient to this norm; null: do not.",
        why="as in verl and TRL; bounds an outlier's effect on Adam's moments",
        above=0,
    )
    use_kl_loss: bool = option(
        False,
        "Add the KL to the reference policy to the loss.",
        why="DAPO and SRPO train without it",
    )
    kl_loss_coef: float = option(
        0.001,
        "Weight of the KL in the loss.",
        why="DeepSeekMath uses 0.04, most others less",
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
class RefArguments:
    """The reference policy of the KL; not in memory when no KL is used."""

    path: str | None = option(
        None,
        "Folder of the reference policy; null: the policy's initial weights.",
        why="the KL then measures drift",
        path=True,
    )
    offload: bool = option(
        False,
        "Keep the reference policy in host memory except during its passes.",
        why="it copies 4 bytes per weight there and back in each step",
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
        "Folder or hub id of a sequence classifier with one output, for reward.name=model or a "
        "part of reward.functions.",
        text_only=OWN_REWARD,
        path=True,
    )
    micro_batch_size: int = option(
        16,
        "Conversations of one forward pass.",
        why="takes little memory, because there are no gradients",
        minimum=1,
        text_only=OWN_REWARD,
    )
    trust_remote_code: bool = option(
        False,
        REMOTE_CODE,
        why=REMOTE_CODE_REASON,
        text_only=OWN_REWARD,
    )
