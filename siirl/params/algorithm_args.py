"""Keys of the algorithm: advantages, KL control, group filters."""

from dataclasses import dataclass, field

from siirl.params.fields import option
from siirl.params.registered_names import ESTIMATORS

ADV_WHITENINGS = (
    "unbiased",
    "biased",
    "mean",
    "none",
)  # defined in siirl.algos.advantages
CPGD_WEIGHTS = ("STD_weight", "clip_filter_like_weight", "naive")
FILTERS = ("zero_variance", "success_band", "truncation")
FILTER_METRICS = ("score", "reward", "success")
KL_ESTIMATORS = (
    "k1",
    "k2",
    "k3",
    "abs",
    "k1+",
    "k2+",
    "k3+",
    "abs+",
)  # '+': straight-through gradient


@dataclass
class KLCtrlArguments:
    """Coefficient of the KL penalty in the reward."""

    type: str = option(
        "fixed",
        "`fixed`, or `adaptive` towards target_kl.",
        why="one objective for the whole run",
        choices=("fixed", "adaptive"),
    )
    kl_coef: float = option(
        0.001,
        "Coefficient, or its initial value if adaptive.",
        why="verl's; a KL of 100 over a response lowers its reward by 0.1",
        minimum=0,
    )
    target_kl: float = option(
        0.1,
        "Target KL of an adaptive coefficient.",
        why="below it, a policy stays close to its reference",
        above=0,
    )
    horizon: int = option(
        10_000,
        "Time constant of an adaptive coefficient, in samples.",
        why="Ziegler et al. 2019, section 2.2",
        minimum=1,
    )


@dataclass
class FilterArguments:
    """Filters of rollout groups, for pipeline=dapo and pipeline=embodied_srpo."""

    success_low: float = option(
        0.0,
        "Drop groups with a lower success rate.",
        why="0: no band",
        minimum=0,
        maximum=1,
    )
    success_high: float = option(
        1.0, "Drop groups with a higher success rate.", why="1: no band", minimum=0, maximum=1
    )
    drop_truncated: bool = option(
        False,
        "Drop trajectories that reached the step limit.",
        why="the reward ranks these failures",
    )
    name: str | None = option(
        None,
        "Filter rule of pipeline=dapo and pipeline=embodied_srpo; null: the pipeline's own. "
        "zero_variance works with pipeline=dapo only, because embodied_srpo filters before it "
        "computes rewards.",
        why="the pipelines differ: dapo combines the three rules, embodied_srpo keeps failures "
        "that the reward ranks",
        choices=FILTERS,
        plug_in=True,
    )
    metric: str = option(
        "score",
        "Column that pipeline=dapo compares within a group: `score` (the reward before penalties), "
        "`reward` (after them) or `success`.",
        why="DAPO compares correctness; a length penalty would keep groups that are all correct",
        choices=FILTER_METRICS,
        plug_in=True,
    )
    max_refills: int = option(
        4,
        "Rounds in which pipeline=dapo rolls out further prompts to replace dropped groups; then "
        "it trains on the groups that it has. If a custom node requests more in a step, the run "
        "ends.",
        why="if half the groups pass, two rounds fill a step; if none passes in five rounds, the "
        "task is too hard or solved",
        minimum=0,
    )


@dataclass
class OverlongArguments:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4); text only."""

    penalty: float = option(
        0.0,
        "Penalty on the reward at the token limit; 0: none.",
        why="pipeline=dapo sets the paper's 1",
        minimum=0,
        text_only="episodes of robots are bounded by env.max_episode_steps",
    )
    buffer: int | None = option(
        None,
        "Tokens before data.max_response_length over which the penalty grows; null: a fifth of "
        "that length.",
        why="the paper's 4096 of 20480",
        minimum=1,
    )


@dataclass
class AlgorithmArguments:
    """Advantages and KL control."""

    adv_estimator: str = option(
        "grpo",
        "Advantage estimator.",
        why="needs neither a critic nor a second rollout",
        choices=tuple(ESTIMATORS),
        plug_in=True,
    )
    workflow_type: str = option(
        "", "Old name for pipeline=: DEFAULT, DAPO or EMBODIED.", derived=True
    )
    gamma: float = option(
        1.0,
        "Discount of gae and reinforce_plus_plus.",
        why="episodes are short and end at success",
        minimum=0,
        maximum=1,
    )
    lam: float = option(0.95, "Lambda of GAE.", why="Schulman et al. 2016", minimum=0, maximum=1)
    use_kl_in_reward: bool = option(
        False,
        "Subtract the KL to the reference policy from the reward.",
        why="DAPO and SRPO use none",
    )
    norm_adv_by_std_in_grpo: bool = option(
        True,
        "Divide advantages by the group's standard deviation.",
        why="DeepSeekMath; Dr.GRPO does not",
    )
    adv_whitening: str = option(
        "unbiased",
        "Whitening of gae's and reinforce_plus_plus's advantages: variance with n - 1 or n, "
        "mean only, or none.",
        why="as in torch.var and most PPO implementations",
        choices=ADV_WHITENINGS,
    )
    pass_k: int | None = option(
        None, "k of grpo_passk; null: the whole group.", why="arXiv 2503.19595", minimum=2
    )
    weight_factor_in_cpgd: str = option(
        "STD_weight",
        "Group weights of cpgd.",
        why="best overall in arXiv 2505.12504, table 2",
        choices=CPGD_WEIGHTS,
    )
    kl_penalty: str = option(
        "k1",
        "Estimator of the KL in the reward.",
        why="unbiased; a reward needs no gradient",
        choices=KL_ESTIMATORS,
        plug_in=True,
    )
    min_group_spread: float = option(
        1e-6,
        "Smallest reward spread of a group with advantages; below it they are 0.",
        why="float rounding; a learned reward needs more, or normalisation amplifies its noise "
        "to +-1",
        minimum=0,
    )
    kl_ctrl: KLCtrlArguments = field(default_factory=KLCtrlArguments)
    filter: FilterArguments = field(default_factory=FilterArguments)
    overlong: OverlongArguments = field(default_factory=OverlongArguments)
