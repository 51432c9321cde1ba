"""Memory of an update: compares the plan (`siirl.preflight.rank_memory`) with the measured peak."""

from siirl.gpu_checks.check import CheckSkipped, Trial
from siirl.params.data_args import DataArguments
from siirl.params.model_args import ActorArguments, ActorRolloutRefArguments, ModelArguments
from siirl.preflight.model_shapes import ModelShape
from siirl.preflight.policy_memory import PolicyMemory

LARGEST_ERROR = 0.15  # share of the measured peak


def planned_bytes(
    shape: ModelShape | None,
    model: ModelArguments,
    *,
    data: DataArguments | None = None,
    episode_steps: int | None = None,
    micro_batch_size: int = 1,
    compiled: bool = False,
    ranks: int = 1,
    in_group: bool = False,
) -> float:
    """Bytes of an update on a rank, by the plan's table, without memory of rollouts.

    Args:
        shape: Shape of the model.
        model: Settings of the model: adapters, recomputation and types.
        data: Lengths of text.
        episode_steps: Steps of a robot's trajectory; None for text.
        micro_batch_size: Rows of a pass.
        compiled: Whether the blocks are compiled.
        ranks: Ranks that share the model.
        in_group: Whether they train it through FSDP2.
    """
    assert shape is not None, "the shapes of the checks are known"
    memory = PolicyMemory(
        policy=ActorRolloutRefArguments(
            model=model,
            actor=ActorArguments(micro_batch_size=micro_batch_size, use_torch_compile=compiled),
        ),
        shape=shape,
        data=data or DataArguments(),
        episode_steps=episode_steps,
        ranks=ranks,
        episodes=0,
        in_group=in_group,
        needs_reference=False,
        rolls_out=False,
    )
    return memory.table().peak[1]


def require_room(trial: Trial, planned: float, *, what: str = "it") -> None:
    """Skip the check if `planned` bytes are not free."""
    free = trial.free_bytes()
    if planned > free:
        raise CheckSkipped(
            f"{what} needs {planned / 1e9:.0f} GB by the plan, but {free / 1e9:.0f} GB are free"
        )


def compare_with_peak(trial: Trial, planned: float, *, peak: int | None = None) -> None:
    """Record both, and fail if the plan differs from the peak by more than `LARGEST_ERROR`.

    `peak` is that of other processes; None: this one's.
    """
    trial.note(planned_gb=planned / 1e9)
    peak = trial.peak_bytes() if peak is None else peak
    if peak is None:
        return
    error = planned / peak - 1
    trial.note(peak_gb=peak / 1e9, plan_error_percent=100 * error)
    trial.require(
        abs(error) <= LARGEST_ERROR,
        f"the plan has {planned / 1e9:.1f} GB for this update, but it took {peak / 1e9:.1f} GB "
        f"({error:+.0%}; at most {LARGEST_ERROR:.0%} is allowed)",
    )
