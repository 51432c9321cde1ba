"""`clip_ratio` sets both bounds of the ratio, unless the command line sets one of them."""

from pathlib import Path

import pytest

from siirl.params.parser import parse, to_yaml

ACTOR = "actor_rollout_ref.actor"
BOTH = (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        (["pipeline=grpo"], (None, 0.28)),
        (["pipeline=grpo", f"{ACTOR}.clip_ratio=0.1"], (None, None)),
        (["pipeline=ppo", f"{ACTOR}.clip_ratio=0.1"], (None, None)),
        ([f"{ACTOR}.clip_ratio=0.1", "pipeline=grpo"], (None, None)),
        (["pipeline=grpo", f"{ACTOR}.clip_ratio=0.1", f"{BOTH[1]}=0.3"], (None, 0.3)),
        (["pipeline=grpo", f"{BOTH[1]}=0.3", f"{ACTOR}.clip_ratio=0.1"], (None, 0.3)),
        (["pipeline=grpo", f"{ACTOR}.clip_ratio=0.1", f"{BOTH[0]}=0.05"], (0.05, None)),
        (["pipeline=dapo", f"{ACTOR}.clip_ratio=0.1"], (0.2, 0.28)),
    ],
)
def test_clip_ratio_alone_moves_both_bounds(
    words: list[str], bounds: tuple[float | None, float | None]
) -> None:
    actor = parse(words).config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == bounds


def test_clip_ratio_over_a_runs_configuration_moves_both_bounds(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(parse(["pipeline=grpo"]).config))
    assert parse(config_file=file).config.actor_rollout_ref.actor.clip_ratio_high == 0.28
    actor = parse([f"{ACTOR}.clip_ratio=0.1"], config_file=file).config.actor_rollout_ref.actor
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, None, None)
