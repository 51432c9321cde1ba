"""A recorded episode is simulated again from its seed and its actions, and a
deviation from the recording is detected.
"""

import json
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest

from envs.base import (
    IMAGES,
    INSTRUCTION,
    PROPRIOCEPTION,
    Environment,
    EnvSpec,
    FrameRequest,
    Frames,
    StepResult,
)
from siirl.data_coordinator.lerobot.robot_data_set import RobotDataSet
from siirl.data_coordinator.lerobot.task_names import tasks_of
from siirl.params.parser import parse_config, to_yaml
from siirl.replay import main, show
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder, VideoSample
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER
from siirl.reporting.run_folder import CONFIG_FILE

GOAL = 3.0
REFUSED = 2
PLACE = gymnasium.spaces.Box(-100.0, 100.0, (1,), np.float32)


class WalkEnv(Environment):
    """A walker starts at its seed; it succeeds three to the right of it. `drift` is a wind that
    moves it on.
    """

    def __init__(self, drift: float = 0.0) -> None:
        self.drift = drift
        actions = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.spec = EnvSpec(
            "walk",
            ("right",),
            gymnasium.spaces.Dict({PROPRIOCEPTION: PLACE}),
            actions,
            max_episode_steps=8,
        )
        self.streams: dict[str, FrameRequest] = {}
        self.start = self.place = 0.0
        self.steps = 0

    async def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start."""
        self.start = self.place = float(seed or 0)
        self.steps, self.streams = 0, dict(options["frames"])
        return self._observation(), {
            "task": "right",
            "success": False,
            "frames": self._frames(ended=False),
        }

    async def step(self, action: Any) -> StepResult:
        """Walk."""
        self.place, self.steps = self.place + float(action[0]) + self.drift, self.steps + 1
        success = self.place - self.start >= GOAL
        truncated = not success and self.steps == self.spec.max_episode_steps
        info = {
            "task": "right",
            "success": success,
            "frames": self._frames(ended=success or truncated),
        }
        return self._observation(), float(success), success, truncated, info

    def render(self) -> Any:
        """A picture whose grey level is the length of the walk."""
        return np.full((64, 64, 3), 20 * self.steps, np.uint8)

    def _observation(self) -> dict[str, Any]:
        return {PROPRIOCEPTION: np.array([self.place], np.float32)}

    def _frames(self, *, ended: bool) -> dict[str, Frames]:
        wanted = [
            name
            for name, request in self.streams.items()
            if ended or self.steps % request.every == 0
        ]
        return {name: Frames(self.render()[None], (self.steps,)) for name in wanted}


def recorded_run(folder: Path, actions: list[float], *, success: bool) -> Path:
    """A run folder with one recorded episode, called a/b, from seed 7."""
    folder.mkdir()
    config = parse_config(
        ["env=custom", f"env.name={__name__}:WalkEnv", "pipeline=grpo", "reward=return"]
    )
    (folder / CONFIG_FILE).write_text(to_yaml(config))
    sample = VideoSample(
        uid="a/b", task="right", instruction="go right", kind="val", step=2, seed=7, success=success
    )
    with VideoRecorder(folder / VIDEOS_FOLDER) as recorder:
        film = Frames(np.zeros((2, 64, 64, 3), np.uint8), (0, len(actions)))
        recorder.record(film, sample, {"actions": [[action] for action in actions]})
    return folder


def frames_of(video: Path) -> int:
    """Number of pictures of a video."""
    reader = imageio_ffmpeg.read_frames(str(video))
    next(reader)
    return sum(1 for _ in reader)


def test_an_episode_ends_as_it_was_recorded_and_every_frame_of_it_is_filmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run", [1.0, 1.0, 0.5, 0.5], success=True)
    assert main([str(run), "a/b", "--size", "64"]) == 0
    assert (
        "right, seed 7: success after 4 steps, recorded success after 4 steps"
        in capsys.readouterr().out
    )
    assert frames_of(run / "replay_a_b.mp4") == 5


def test_an_agents_episode_is_simulated_in_the_environment_of_its_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agent 0 answers questions, agent 1 walks; the folder of the run names that of agent 1."""
    run = tmp_path / "run"
    run.mkdir()
    walker = f"{{env: custom, env.name: '{__name__}:WalkEnv', reward: return}}"
    config = parse_config(["env=math", "pipeline=grpo", f"agents={{0: {{}}, 1: {walker}}}"])
    (run / CONFIG_FILE).write_text(to_yaml(config))
    recorded_run(run / "agent_1", [1.0, 1.0, 0.5, 0.5], success=True)
    (run / "agent_1" / CONFIG_FILE).unlink()
    assert main([str(run / "agent_1"), "a/b", "--size", "64"]) == 0
    assert main([str(run)]) == REFUSED
    assert f"Its other agents have some: {run / 'agent_1'}." in capsys.readouterr().err


def test_an_episode_that_takes_another_course_is_filmed_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a wind of 1 the walker is there after two steps."""
    run, video = (
        recorded_run(tmp_path / "run", [1.0, 1.0, 0.5, 0.5], success=True),
        tmp_path / "windy.mp4",
    )
    assert (
        main([str(run), "a/b", "env.kwargs={drift: 1.0}", "--size", "64", "--output", str(video)])
        == 1
    )
    told = capsys.readouterr()
    assert "success after 2 steps, recorded success after 4 steps" in told.out
    assert "ended differently" in told.err
    assert frames_of(video) == 3


def test_without_a_uid_the_recorded_episodes_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(recorded_run(tmp_path / "run", [0.0], success=False))]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("a/b", "right", "fail"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--every", "0"), "--every 0 must be at least 1"),
        (("--size", "0"), "--size 0 must be at least 1"),
        (("--size", "100000"), "and at most 2048"),
        (("--output", "no/where/again.mp4"), "--output no/where/again.mp4: there is no folder"),
        (("--fps", "5"), "--fps 5 is read for a LeRobot data set: add --lerobot FOLDER."),
        (("--lerobot-version", "v2.1"), "--lerobot-version v2.1 is read for a LeRobot data set"),
        (("--lerobot", "out", "--every", "2"), "--every 2 is read for a video, but --lerobot"),
    ],
)
def test_impossible_frames_are_refused_before_anything_is_simulated(
    tmp_path, capsys, flags: tuple[str, ...], expected: str
) -> None:
    assert main([str(recorded_run(tmp_path / "run", [0.0], success=False)), "a/b", *flags]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--size", "64"), ("--output", "film.mp4"), ("--every", "2")])
def test_a_flag_of_a_film_needs_an_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    run = recorded_run(tmp_path / "run", [0.0], success=False)
    assert main([str(run), *flags]) == 2
    told = capsys.readouterr().err
    assert (
        f"{' '.join(flags)} is read for the video of an episode: name its UID after {run}" in told
    )


def test_a_video_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                str(recorded_run(tmp_path / "run", [0.0], success=False)),
                "a/b",
                "--size",
                "64",
                "--output",
                "/proc/again.mp4",
            ]
        )
        == 1
    )
    assert "siirl: the replay failed: ffmpeg ended with" in capsys.readouterr().err


def test_an_episode_that_cannot_be_played_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "is not a run folder with recorded episodes" in capsys.readouterr().err
    run = recorded_run(tmp_path / "run", [0.0], success=False)
    assert main([str(run), "a/c"]) == 2
    assert "Unknown recorded episode 'a/c'. Did you mean 'a/b'?" in capsys.readouterr().err
    (actions,) = run.glob("videos/**/*.json")
    assert json.loads(actions.read_text()) == {"actions": [[0.0]]}
    actions.unlink()
    assert main([str(run), "a/b"]) == 2
    assert "The actions of episode a/b are missing" in capsys.readouterr().err


def test_a_run_of_text_is_refused_with_the_place_of_its_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ROLLOUTS_FOLDER).mkdir()
    (tmp_path / CONFIG_FILE).write_text(to_yaml(parse_config(["pipeline=grpo", "env=math"])))
    assert main([str(tmp_path)]) == 2
    refused = capsys.readouterr().err
    assert f"its prompts and answers are in {tmp_path / ROLLOUTS_FOLDER}" in refused
    assert refused.endswith(f"Type: siirl report {tmp_path} --rollouts\n")
    assert "trainer.record" not in refused  # which makes videos of simulators


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"actions": null}',
        '{"actions": 3}',
        '{"actions": [["a"]]}',
        '{"actions": [[0.0], [0.0, 1.0]]}',
        '{"actions": [[1e30000, 100000000000000000000000000000]]}',
        '{"actions": [[0.0]], "options": 3}',
    ],
)
def test_damaged_actions_are_refused_with_their_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run", [0.0], success=False)
    (actions,) = run.glob("videos/**/*.json")
    actions.write_text(content)
    assert main([str(run), "a/b"]) == 2
    assert f"siirl: {actions} is damaged." in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"seed": "a"}, {"success": 1}, {"environment_steps": None}])
def test_an_episode_whose_row_is_damaged_is_not_listed(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run", [0.0], success=False)
    index = run / "videos" / "index.jsonl"
    index.write_text(json.dumps(json.loads(index.read_text()) | change) + "\n")
    assert main([str(run), "a/b"]) == 2
    assert "is not a run folder with recorded episodes" in capsys.readouterr().err


def test_the_table_of_episodes_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(
        [
            {
                "uid": "a\x1b[2J[/red]",
                "step": 1,
                "task": "push\r",
                "outcome": "fail\x07",
                "environment_steps": 3,
            }
        ]
    )
    shown = capsys.readouterr().out
    assert not {"\x1b", "\r", "\x07"} & set(shown)
    assert "[/red]" in shown


class FilmedWalk(WalkEnv):
    """The walk with pictures and an instruction."""

    def __init__(self, drift: float = 0.0) -> None:
        super().__init__(drift)
        self.spec.observation_space.spaces |= {
            IMAGES: gymnasium.spaces.Box(0, 255, (1, 64, 64, 3), np.uint8),
            INSTRUCTION: gymnasium.spaces.Text(20),
        }

    async def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start."""
        return await super().reset(seed=seed, options={"frames": {}, **options})

    def _observation(self) -> dict[str, Any]:
        return {
            **super()._observation(),
            IMAGES: self.render()[None],
            INSTRUCTION: "go right",
        }


def filmed_run(folder: Path) -> Path:
    run = recorded_run(folder, [1.0, 1.0, 0.5, 0.5], success=True)
    config = (run / CONFIG_FILE).read_text().replace("WalkEnv", "FilmedWalk")
    (run / CONFIG_FILE).write_text(config)
    return run


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_recorded_success_becomes_a_lerobot_episode(version: str, tmp_path: Path) -> None:
    run, folder = filmed_run(tmp_path / "run"), tmp_path / "data"
    words = ["--lerobot", str(folder), "--lerobot-version", version]
    assert main([str(run), *words]) == 0
    data = RobotDataSet(folder)
    assert tasks_of(data, tasks=["right"]) == {"go right": "right"}
    (episode,) = data.read(cameras=data.cameras)
    assert episode.actions[:, 0].tolist() == [1.0, 1.0, 0.5, 0.5]
    assert episode.state[:, 0].tolist() == [7.0, 8.0, 9.0, 9.5]
    np.testing.assert_allclose(episode.images.mean((1, 2, 3, 4)), [0, 20, 40, 60], atol=3)


def test_an_episode_that_takes_another_course_is_not_a_demonstration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--lerobot", str(tmp_path / "data"), "env.kwargs={drift: 1.0}"]
    assert main([str(filmed_run(tmp_path / "run")), *words]) == 1
    assert "1 episodes ended differently and are left out: a/b" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "needs observations of pictures and proprioception"),
        (["nothing"], "recorded no success nothing"),
        (["--fps=0"], "--fps 0 must be at least 1"),
    ],
)
def test_episodes_that_cannot_be_a_data_set_are_refused(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run", [1.0, 1.0, 0.5, 0.5], success=True)
    assert main([str(run), *words, "--lerobot", str(tmp_path / "data")]) == 2
    assert sentence in capsys.readouterr().err


def test_only_the_folder_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "the following arguments are required: folder\n" in capsys.readouterr().err
