"""Environment specifications for tests, and the problems of a job in such an environment."""

from collections.abc import Sequence

import gymnasium
import numpy as np

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, EnvSpec
from envs.text import text_spec
from siirl.params.domains import is_text
from siirl.params.parser import parse
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.unread import unread_in_domain


def spec(
    *,
    images: bool = True,
    renders: bool = True,
    instruction: bool = True,
    success: bool = True,
    tasks: Sequence[str] = ("a", "b"),
) -> EnvSpec:
    """An environment with the requested properties."""
    parts: dict[str, gymnasium.Space] = {
        PROPRIOCEPTION: gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    }
    if images:
        parts[IMAGES] = gymnasium.spaces.Box(0, 255, (1, 64, 64, 3), np.uint8)
    if instruction:
        parts[INSTRUCTION] = gymnasium.spaces.Text(20)
    actions = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    return EnvSpec(
        "own",
        tuple(tasks),
        gymnasium.spaces.Dict(parts),
        actions,
        max_episode_steps=100,
        reports_success=success,
        renders=renders,
    )


TEXT = text_spec(name="math", tasks=["sums-2", "sums-3"], max_turns=1, max_action_characters=100)


def environment(env: EnvSpec, *overrides: str) -> list[str]:
    parsed = parse(overrides)
    unread = unread_in_domain(parsed.config, text=is_text(env), named=parsed.named)
    return [str(problem) for problem in (*environment_problems(parsed.config, env), *unread)]
