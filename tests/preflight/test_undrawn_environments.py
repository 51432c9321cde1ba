"""Gymnasium environments that declare pictures and have no `render` are trained without videos."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from siirl.train import main

ID, ANNULLED_ID = "siirl-undrawn/Env-v0", "siirl-undrawn/Annulled-v0"


class Undrawn(gymnasium.Env[Any, Any]):
    """Declares pictures, but has no `render`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's form)
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Annulled(Undrawn):
    """Says that it has no `render`."""

    render = None


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register(ID, Undrawn, max_episode_steps=3)
    gymnasium.register(ANNULLED_ID, Annulled, max_episode_steps=3)
    yield
    del gymnasium.registry[ID], gymnasium.registry[ANNULLED_ID]


@pytest.mark.parametrize("name", [ID, ANNULLED_ID])
def test_videos_are_turned_off_before_the_start_without_advice_to_install_anything(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plan", "pipeline=grpo", "env=gymnasium", f"env.id={name}"]) == 0
    told = capsys.readouterr().err
    assert f"Warning: {name} cannot be rendered here, so no videos are recorded" in told
    assert "pygame" not in told
