"""The published protocol: its episodes, the continuation of an interrupted evaluation, and the
tables.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from envs.libero.suites import choose_tasks
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.errors import CheckpointError, SimulationFailed, TooManyFailures
from siirl.jobs.libero_protocol import (
    PublishedEpisode,
    conditions,
    identity,
    protocol_tables,
    rates,
    read_episodes,
    run_protocol,
    suite_mean,
    suite_words,
)
from siirl.params.env_args import EnvArguments
from siirl.params.parser import parse_config
from siirl.reporting.jsonl import read_rows

TASKS = choose_tasks("object", [0, 1])
DESCRIPTION = {"weights": "abc", "notice": ""}


class Player(RolloutWorkflow):
    """Plays episodes by rule: even states succeed; those in `broken` cannot be simulated, and at
    `crash` the program ends.
    """

    def __init__(self, *, broken: tuple[int, ...] = (), crash: int | None = None) -> None:
        self.broken, self.crash, self.requests = broken, crash, list[EpisodeRequest]()

    async def arun_episode(self, engine: object, data: EpisodeRequest) -> Trajectory:
        self.requests.append(data)
        if data.seed == self.crash:
            raise RuntimeError("the program ends")
        if data.seed in self.broken:
            raise SimulationFailed("broken")
        return Trajectory({"seed": data.seed, "complete": data.seed % 2 == 0, "finish_step": 10})


class NoPolicy:
    """Counts episodes; the player needs no computed actions."""

    def expect(self, *, episodes: int, at_once: int) -> None: ...

    def episode_ended(self) -> None: ...


def played(player: Player, file: Path, **arguments: object) -> list[PublishedEpisode]:
    arguments = {"kinds": ["argmax"], "states": 4} | arguments
    with InferenceEngine(NoPolicy()) as inference:
        rollout = SimpleNamespace(workflow=player, rollout_batch=inference.rollout_batch)
        return run_protocol(
            rollout=rollout, tasks=TASKS, seed=0, file=file, description=DESCRIPTION, **arguments
        )


def test_every_task_starts_from_every_state_once(tmp_path: Path) -> None:
    player = Player()
    played(player, tmp_path / "episodes.jsonl", states=50)
    asked = [(request.task, request.seed, request.greedy) for request in player.requests]
    assert asked == [(task.name, state, True) for task in TASKS for state in range(50)]
    assert len({request.uid for request in player.requests}) == 100


def test_interrupted_evaluation_plays_only_what_is_missing(tmp_path: Path) -> None:
    file, again = tmp_path / "episodes.jsonl", tmp_path / "again.jsonl"
    played(Player(), file)
    lines = file.read_text().splitlines()
    # the description and states 0 to 2 of the first task
    file.write_text("\n".join(lines[:4]) + "\n")
    player = Player()
    episodes = played(player, again, done=read_episodes(file, expected=DESCRIPTION))
    assert [(request.task_id, request.seed) for request in player.requests] == [
        (0, 3),
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert sorted(again.read_text().splitlines()) == sorted(lines)
    assert len({episode.key for episode in episodes}) == 8


def test_policy_differs_if_any_file_of_its_weights_differs(tmp_path: Path) -> None:
    """SHA-256 of `abc` begins with ba7816bf (FIPS 180-4, example 1), however the three bytes are
    spread over files.
    """
    config, files = parse_config(["env=libero"]), [tmp_path / "1", tmp_path / "2"]
    files[0].write_text("a")
    files[1].write_text("bc")
    assert (
        identity(config.env, config.actor_rollout_ref.rollout, config.trainer, files, notice="")[
            "weights"
        ]
        == "ba7816bf8f01cfea"
    )
    files[1].write_text("bd")
    assert (
        identity(config.env, config.actor_rollout_ref.rollout, config.trainer, files, notice="")[
            "weights"
        ]
        != "ba7816bf8f01cfea"
    )


def test_episode_is_written_when_it_is_over_and_not_when_its_task_is(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    with pytest.raises(RuntimeError, match="the program ends"):
        played(Player(crash=2), file)
    assert [(row["number"], row["state"]) for row in list(read_rows(file))[1:]] == [
        (0, 0),
        (0, 1),
        (0, 3),
    ]  # those that ended


def test_other_policy_is_not_mixed_in(tmp_path: Path) -> None:
    played(Player(), tmp_path / "episodes.jsonl")
    with pytest.raises(
        CheckpointError, match="was evaluated with weights='abc', but this evaluation has 'xyz'"
    ):
        read_episodes(tmp_path / "episodes.jsonl", expected=DESCRIPTION | {"weights": "xyz"})


def test_episodes_with_other_placements_are_not_mixed_in(tmp_path: Path) -> None:
    """Older files, from before fixtures had the official places, lack the entry."""
    (tmp_path / "weights").write_text("abc")
    description = identity(
        parse_config(["env=libero"]).env,
        parse_config(["env=libero"]).actor_rollout_ref.rollout,
        parse_config(["env=libero"]).trainer,
        [tmp_path / "weights"],
        notice="",
    )
    file = tmp_path / "episodes.jsonl"
    with InferenceEngine(NoPolicy()) as inference:
        rollout = SimpleNamespace(workflow=Player(), rollout_batch=inference.rollout_batch)
        earlier = {name: value for name, value in description.items() if name != "placements"}
        run_protocol(
            rollout=rollout,
            tasks=TASKS,
            kinds=["argmax"],
            seed=0,
            file=file,
            description=earlier,
            states=1,
        )
    with pytest.raises(
        CheckpointError, match="with placements=None, but this evaluation has 'fixt"
    ):
        read_episodes(file, expected=description)


def test_failed_simulation_is_in_no_line_and_too_many_stop(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    assert len(played(Player(broken=(2,)), file, max_failed_share=0.5)) == 6
    assert [row["state"] for row in list(read_rows(file))[1:]] == [0, 1, 3, 0, 1, 3]
    with pytest.raises(TooManyFailures, match="1 of 4 episodes"):
        played(Player(broken=(2,)), file)


def test_suites_are_counted_separately_and_averaged_with_equal_weight() -> None:
    episodes = [PublishedEpisode("object", 0, state, "argmax", state < 3, 10) for state in range(4)]
    episodes += [
        PublishedEpisode("goal", 5, 0, "argmax", False, 10),
        PublishedEpisode("goal", 5, 0, "sampled", True, 10),
    ]
    found = rates(episodes, kind="argmax")
    assert (
        found["object"]["0"].successes,
        found["object"]["all"].episodes,
        found["goal"]["all"].rate,
    ) == (3, 4, 0.0)
    assert suite_mean(found) == (0.75 + 0.0) / 2


@pytest.mark.parametrize(
    ("tasks", "states", "limit", "sentence"),
    [
        (
            10,
            50,
            None,
            "argmax actions, all 50 initial states of each task (the published protocol); training "
            "may have started from",
        ),
        (
            10,
            4,
            None,
            "argmax actions, 4 of 50 initial states of each task (NOT the whole published "
            "protocol)",
        ),
        (2, 50, None, "argmax actions, 2 of 10 tasks of object (NOT the whole published protocol)"),
        (
            10,
            50,
            64,
            "argmax actions, at most 64 steps instead of the suites' limits (NOT the whole "
            "published protocol)",
        ),
    ],
)
def test_table_says_whether_it_is_the_whole_protocol(
    tasks: int, states: int, limit: int | None, sentence: str
) -> None:
    console = Console(width=200, record=True)
    episodes = [
        PublishedEpisode("object", task, state, "argmax", True, 10)
        for task in range(tasks)
        for state in range(states)
    ]
    episodes += [
        PublishedEpisode("object", task, state, "sampled", True, 10)
        for task in range(10)
        for state in range(50)
    ]
    for table in protocol_tables(
        episodes, TASKS, kind="argmax", conditions="stand-in assets", max_episode_steps=limit
    ):
        console.print(table)
    text = " ".join(console.export_text().split())  # titles are broken to the width of their tables
    assert f"LIBERO by task, {sentence}" in text
    assert f"LIBERO by suite, {sentence.partition(';')[0]}" in text
    assert text.count("stand-in assets") == 2


def test_tables_say_where_fixtures_stand_and_how_images_differ_from_the_official_ones() -> None:
    fast = parse_config(["env=libero", "env.image_size=128", "env.render_quality=fast"])
    placed, *others = conditions(fast.env, notice="stand-ins").split("; ")
    assert placed.startswith(
        "fixtures of initial state i stand as in episode i of the official loop (env.seed(0)"
    )
    assert others == ["images of 128 pixels, fast", "the official ones have 256, full", "stand-ins"]
    full = parse_config(["env=libero", "env.image_size=256", "env.render_quality=full"])
    assert conditions(full.env, notice="") == placed


@pytest.mark.parametrize(
    ("words", "states", "tasks"),
    [
        (("env=libero", "env.suite=spatial"), "all", None),
        (("env=libero", "env.suite=spatial", "env.states=split", "env.tasks=[3]"), "split", ("3",)),
        (
            ("env=libero",),
            "split",
            ("0", "1", "4", "7", "9"),
        ),  # as it was trained: its five tasks, the held-out states
    ],
)
def test_named_suite_is_evaluated_whole_unless_tasks_are_set(
    words: tuple[str, ...], states: str, tasks: tuple[str, ...] | None
) -> None:
    env = parse_config([*suite_words(words), *words]).env
    assert (env.states, env.tasks) == (states, tasks)


def test_configuration_asks_for_it_by_its_states() -> None:
    from siirl.jobs.libero_protocol import asked_for

    assert asked_for(EnvArguments(name="libero", states="all"))
    assert not asked_for(EnvArguments(name="libero", states="split"))
    assert not asked_for(EnvArguments(name="libero", states="all", perturb=("light",)))
