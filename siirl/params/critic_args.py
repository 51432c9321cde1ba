"""Keys of the value model (pipeline=ppo): initial weights and update."""

from dataclasses import dataclass, field

from siirl.params.fields import option
from siirl.params.model_args import LARGEST_RATE, OptimizerArguments


@dataclass
class CriticOptimizerArguments(OptimizerArguments):
    """AdamW and its schedule."""

    lr: float = option(
        1e-5,
        "Learning rate after warm-up.",
        why="verl's, ten times its actor's; pipeline=ppo uses the actor's",
        above=0,
        maximum=LARGEST_RATE,
    )


@dataclass
class CriticArguments:
    """The value model: a copy of the policy with a value head."""

    path: str | None = option(
        None,
        "Folder of its initial model; null: the policy's weights.",
        why="the policy already knows the task",
        path=True,
    )
    ppo_epochs: int | None = option(
        None, "Passes over the samples of a step; null: the actor's.", minimum=1
    )
    ppo_mini_batch_size: int | None = option(
        None,
        "Prompts of one optimiser step, over all ranks; null: the actor's. Multiplied by "
        "actor_rollout_ref.rollout.n, it gives the trajectories. With "
        "actor_rollout_ref.rollout.n_steps it counts decisions.",
        minimum=1,
    )
    micro_batch_size: int | None = option(
        None, "Trajectories of one forward pass on a rank; null: the actor's.", minimum=1
    )
    cliprange_value: float | None = option(
        0.5,
        "Value clip range of a step's update, in standard deviations of the returns if "
        "normalize_returns is true; null: no clipping.",
        why="verl's, which clips values that are not standardised",
        above=0,
    )
    normalize_returns: bool = option(
        True,
        "Predict returns standardised by the mean and standard deviation of all returns so far.",
        why="the same learning rate and clip range then fit returns of 0.3 and of 300 (PopArt, "
        "arXiv 1602.07714)",
    )
    max_grad_norm: float | None = option(
        1.0, "Clip the gradient to this norm; null: do not.", why="the actor's", above=0
    )
    optim: CriticOptimizerArguments = field(default_factory=CriticOptimizerArguments)
