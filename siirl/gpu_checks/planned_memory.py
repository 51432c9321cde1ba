"""Memory of an update: compares the plan (`siirl.preflight.rank_memory`) with the measured peak."""

from siirl.gpu_checks.check import Trial
from siirl.params.data_args import DataArguments
from siirl.params.model_args import ActorArguments, ActorRolloutRefArguments, ModelArguments
from siirl.preflight.model_shapes import ModelShape
from siirl.preflight.rank_memory import PolicyMemory

LARGEST_ERROR = 0.15  # share of the measured peak


def planned_bytes(
    shape: ModelShape | None,
    model: ModelArguments,
    *,
    data: DataArguments | None = None,
    episode_steps: int | None = None,
    micro_batch_size: int = 1,
    compiled: bool = False,
) -> float:
    """Bytes of an update on one rank, by the plan's table.

    Args:
        shape: Shape of the model.
        model: Settings of the model: adapters, recomputation and types.
        data: Lengths of text.
        episode_steps: Steps of a robot's trajectory; None for text.
        micro_batch_size: Rows of a pass.
        compiled: Whether the blocks are compiled.
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
        ranks=1,
        episodes=0,
        in_group=False,
        needs_reference=False,
    )
    return memory.table().peak[1]


def compare_with_peak(trial: Trial, planned: float) -> None:
    """Record both, and fail if the plan differs from the peak by more than `LARGEST_ERROR`."""
    trial.note(planned_gb=planned / 1e9)
    peak = trial.peak_bytes()
    if peak is None:
        return
    error = planned / peak - 1
    trial.note(peak_gb=peak / 1e9, plan_error_percent=100 * error)
    trial.require(
        abs(error) <= LARGEST_ERROR,
        f"the plan has {planned / 1e9:.1f} GB for this update, but it took {peak / 1e9:.1f} GB "
        f"({error:+.0%}; at most {LARGEST_ERROR:.0%} is allowed)",
    )
