"""Keys of the profiler."""

from dataclasses import dataclass

from siirl.params.fields import option


@dataclass
class ProfilerArguments:
    """torch.profiler on selected steps; a trace of all ranks goes to the run folder."""

    enable: bool = option(
        False,
        "Write a trace of each of these steps over all ranks, for Perfetto.",
        why="slows a step",
    )
    steps: tuple[int, ...] = option(
        (2,),
        "Training steps to profile, from 1 on.",
        why="the first one still warms up",
        minimum=1,
        unique=True,
        filled=True,
    )
