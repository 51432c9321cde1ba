"""Gymnasium environments that declare pictures: without a `render` they are trained without videos,
with a broken one they are refused before the start.
"""

from collections.abc import Iterator

import gymnasium
import pytest

from envs.base import ENCODER_STREAM, RECORDER_STREAM
from envs.registry import env_spec
from siirl.terminal.exit_status import REFUSED
from siirl.train import main
from tests.envs.undrawn_environments import ID as BROKEN_ID
from tests.envs.undrawn_environments import Broken, Undrawn

ID, ANNULLED_ID = "siirl-undrawn/Env-v0", "siirl-undrawn/Annulled-v0"
UNFILMED = ("trainer.record_episodes=0", "trainer.record_val_episodes=0")


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


def test_a_render_that_fails_is_refused_before_the_start_with_the_keys_of_the_videos(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["--plan", "pipeline=grpo", "env=gymnasium", f"env.id={BROKEN_ID}"]
    assert main(job) == REFUSED
    told = capsys.readouterr().err
    assert f"siirl: env.name=gymnasium: Gymnasium environment {BROKEN_ID!r}: render raised" in told
    assert "OSError: no display" in told
    assert told.endswith(f"Only the videos need its pictures: set {' '.join(UNFILMED)}.\n")
    assert main([*job, *UNFILMED]) == 0


def test_a_render_that_fails_is_refused_where_a_child_process_describes_the_environment() -> None:
    name = f"{Broken.__module__}:{BROKEN_ID}"
    assert env_spec("gymnasium", id=name).renders
    with pytest.raises(RuntimeError, match=r"render raised OSError.*Only the videos need"):
        env_spec("gymnasium", [RECORDER_STREAM], id=name)
    with pytest.raises(RuntimeError, match=r"render raised OSError: no display \(.*\)\.$"):
        env_spec("gymnasium", [RECORDER_STREAM, ENCODER_STREAM], id=name)
