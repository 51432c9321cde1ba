"""The value model of pipelines with a critic (pipeline=ppo): where it starts, and how it is
updated.
"""

from dataclasses import dataclass, field

from siirl.params.fields import option
from siirl.params.model_args import OptimizerArguments


@dataclass
class CriticOptimizerArguments(OptimizerArguments):
    """AdamW and its schedule."""

    lr: float = option(
        1e-5,
        "Learning rate after warm-up.",
        why="verl's, ten times its actor's; pipeline=ppo takes the actor's",
        above=0,
    )


@dataclass
class CriticArguments:
    """The value model: a copy of the policy with a value head in place of its own."""

    path: str | None = option(
        None,
        "Folder of the model whose features it starts from; null: the policy's own weights.",
        why="they know the task already",
    )
    ppo_epochs: int | None = option(
        None, "Passes over the samples of a step; null: the actor's.", minimum=1
    )
    ppo_mini_batch_size: int | None = option(
        None,
        "Prompts of one optimiser step, over all ranks; null: the actor's. Times "
        "actor_rollout_ref.rollout.n gives the trajectories.",
        minimum=1,
    )
    micro_batch_size: int | None = option(
        None, "Trajectories of one forward pass on a rank; null: the actor's.", minimum=1
    )
    cliprange_value: float | None = option(
        0.5,
        "How far one step's update may move a value before its error counts no more, in "
        "deviations of the returns where normalize_returns "
        "is true; null: as far as it likes.",
        why="verl's",
        above=0,
    )
    normalize_returns: bool = option(
        True,
        "Predict returns less their running mean, over their running deviation.",
        why="returns of 0.3 and of 300 then train alike with one learning rate and one clip "
        "range (PopArt, arXiv 1602.07714)",
    )
    max_grad_norm: float | None = option(
        1.0, "Clip the gradient to this norm; null: do not.", why="the actor's", above=0
    )
    optim: CriticOptimizerArguments = field(default_factory=CriticOptimizerArguments)
