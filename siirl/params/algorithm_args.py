"""What is done with rewards: advantages, KL control, and which groups are kept."""

from dataclasses import dataclass, field

from siirl.params.estimators import ESTIMATORS
from siirl.params.fields import option

ADV_WHITENINGS = (
    "unbiased",
    "biased",
    "mean",
    "none",
)  # siirl.algos.advantages says what each does
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
        "Coefficient, or its first value where it adapts.",
        why="verl's; a KL of 100 over a response takes 0.1 off its reward",
        minimum=0,
    )
    target_kl: float = option(
        0.1,
        "KL that an adaptive coefficient aims at.",
        why="a policy stays recognisable below it",
        above=0,
    )
    horizon: int = option(
        10_000,
        "Samples over which an adaptive coefficient moves.",
        why="Ziegler et al. 2019, section 2.2",
        minimum=1,
    )


@dataclass
class FilterArguments:
    """Which groups of rollouts a step trains on; groups that reward cannot tell apart are dropped
    in any case.
    """

    success_low: float = option(
        0.0,
        "Drop groups with a smaller share of successes.",
        why="0: no band",
        minimum=0,
        maximum=1,
    )
    success_high: float = option(
        1.0, "Drop groups with a larger share of successes.", why="1: no band", minimum=0, maximum=1
    )
    drop_truncated: bool = option(
        False,
        "Drop trajectories that ran into the step limit.",
        why="their failure is what the reward ranks",
    )
    name: str | None = option(
        None,
        "Rule by which the filter of pipeline=dapo and of pipeline=embodied_srpo keeps "
        "trajectories, in place of its own; null: its own. "
        "zero_variance compares rewards, which embodied_srpo has only after its filter: with "
        "pipeline=dapo alone.",
        why="docs/algorithms.md says what each keeps",
        choices=FILTERS,
        plug_in=True,
    )
    metric: str = option(
        "score",
        "What pipeline=dapo compares within a group: `score` (the reward before penalties), "
        "`reward` (after them) or `success`.",
        why="DAPO compares right and wrong; a penalty for length would keep groups that are all "
        "right",
        choices=FILTER_METRICS,
        plug_in=True,
    )
    max_refills: int = option(
        4,
        "Rounds of further prompts that pipeline=dapo rolls out where groups were dropped; then "
        "it trains on what there is.",
        why="half of the groups kept fills a step in two; five rounds of a step without any say "
        "that the task is too hard or solved",
        minimum=0,
    )


@dataclass
class OverlongArguments:
    """DAPO's soft punishment of responses that come near the limit of tokens (arXiv 2503.14476,
    section 3.4); of text alone.
    """

    penalty: float = option(
        0.0,
        "Taken off the reward at the limit of tokens; 0: none.",
        why="pipeline=dapo sets the paper's 1",
        minimum=0,
    )
    buffer: int | None = option(
        None,
        "Tokens before data.max_response_length over which the penalty grows; null: a fifth of it.",
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
        why="DAPO and SRPO train without",
    )
    norm_adv_by_std_in_grpo: bool = option(
        True, "Divide a group's advantages by its deviation.", why="DeepSeekMath; Dr.GRPO does not"
    )
    adv_whitening: str = option(
        "unbiased",
        "Whitening of gae's and reinforce_plus_plus's advantages: variance with n - 1 or n, the "
        "mean alone, or none.",
        why="as torch.var; what most PPO implementations do",
        choices=ADV_WHITENINGS,
    )
    pass_k: int | None = option(
        None, "k of grpo_passk; null: the whole group.", why="arXiv 2503.19595", minimum=2
    )
    weight_factor_in_cpgd: str = option(
        "STD_weight", "How cpgd weighs groups.", why="siiRL's", choices=CPGD_WEIGHTS
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
        "A group whose rewards differ by less carries no advantage.",
        why="float rounding; a learned reward needs more, or its noise divided by its own "
        "deviation becomes +-1",
        minimum=0,
    )
    kl_ctrl: KLCtrlArguments = field(default_factory=KLCtrlArguments)
    filter: FilterArguments = field(default_factory=FilterArguments)
    overlong: OverlongArguments = field(default_factory=OverlongArguments)
