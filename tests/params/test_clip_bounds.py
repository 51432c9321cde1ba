"""`clip_ratio` sets both bounds of the ratio, unless a file or the command line sets one too."""

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


@pytest.mark.parametrize(
    ("in_file", "words", "bounds"),
    [
        ("clip_ratio: 0.11", ["pipeline=grpo"], (0.11, None, None)),
        ("clip_ratio: 0.11", [], (0.11, None, None)),
        ("clip_ratio: 0.11", ["pipeline=embodied_srpo"], (0.11, None, None)),
        ("clip_ratio: 0.2", ["pipeline=grpo"], (0.2, None, None)),
        ("clip_ratio: 0.11", ["pipeline=dapo"], (0.11, 0.2, 0.28)),  # refused: clip_ratio is unread
        ("clip_ratio: 0.11", ["pipeline=grpo", f"{BOTH[1]}=0.3"], (0.11, None, 0.3)),
        ("clip_ratio: 0.11, clip_ratio_low: 0.1", ["pipeline=grpo"], (0.11, 0.1, None)),
        ("clip_ratio: '${trainer.total_steps}'", ["pipeline=grpo"], (7.0, None, None)),
        # the trainer's own clip_ratio replaces the file's, and the pipeline's bound stays
        ("clip_ratio: 0.11", ["pipeline=grpo", "trainer=atari_like"], (0.1, None, 0.28)),
    ],
)
def test_clip_ratio_of_a_file_moves_both_bounds_whoever_names_the_pipeline(
    tmp_path: Path,
    in_file: str,
    words: list[str],
    bounds: tuple[float, float | None, float | None],
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"trainer: {{total_steps: 7}}\nactor_rollout_ref: {{actor: {{{in_file}}}}}\n")
    actor = parse(words, config_file=file).config.actor_rollout_ref.actor
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == bounds


@pytest.mark.parametrize(
    ("moved", "bounds"),
    [
        ([f"{ACTOR}.clip_ratio=0.11"], (0.11, None, None)),
        ([], (0.2, None, 0.28)),  # nobody chose the 0.2 that the run wrote out
    ],
)
def test_a_pipeline_over_a_runs_configuration_keeps_a_chosen_clip_ratio(
    tmp_path: Path, moved: list[str], bounds: tuple[float, float | None, float | None]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(parse(["pipeline=ppo", *moved]).config))
    actor = parse(["pipeline=grpo"], config_file=file).config.actor_rollout_ref.actor
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == bounds
