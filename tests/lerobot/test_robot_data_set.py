"""LeRobot data sets: those of the lerobot package are read, and siirl's are read by it.

The folders beside this file were made by lerobot 0.4.4 (v3.0, with videos and with pictures) and
0.3.3 (v2.1), with make_lerobot.py; its head says how.
"""

import functools
import io
import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from siirl.data_coordinator.lerobot.data_set_writer import DataSetWriter
from siirl.data_coordinator.lerobot.feature_statistics import FeatureStatistics, merged_statistics
from siirl.data_coordinator.lerobot.robot_data_set import RobotDataSet, RobotEpisode, kept_frames
from siirl.data_coordinator.lerobot.task_names import tasks_of
from siirl.engine.reward_manager.demonstration_clips import load_demonstration_clips
from siirl.reporting.recorder import write_video

HERE = Path(__file__).parent
MADE = ("v21", "v30", "v30_images")
FRONT = "observation.images.front"
LENGTHS, TASKS = (12, 8), ("drawer-open", "close the drawer")


def expected_image(episode: int, number: int) -> np.ndarray:
    """As make_lerobot.py draws it."""
    image = np.full((64, 64, 3), 40 + 100 * episode, np.uint8)
    image[20:36, 4 * number : 4 * number + 12] = 255
    return image


def written(folder: Path, version: str) -> Path:
    """The data set of make_lerobot.py in siirl's writing."""
    encode = functools.partial(write_video, frames_per_second=10)
    writer = DataSetWriter(
        folder, cameras=[FRONT], fps=10, write_video=encode, version=version, robot_type="walk"
    )
    for episode, task in enumerate(TASKS):
        steps = range(LENGTHS[episode])
        images = np.stack([expected_image(episode, number)[None] for number in steps])
        state = np.array([[episode, number, 0.5, -0.5] for number in steps], np.float32)
        actions = np.array([[n / 20, -0.25 * episode, 0, 1] for n in steps], np.float32)
        writer.add(RobotEpisode(0, task, images, state, actions), task_name=f"task {episode}")
    writer.close()
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    own = tmp_path_factory.mktemp("written")
    return {name: HERE / name for name in MADE} | {
        f"siirl {version}": written(own / version, version) for version in ("v2.1", "v3.0")
    }


@pytest.mark.parametrize("name", [*MADE, "siirl v2.1", "siirl v3.0"])
def test_episodes_are_read_from_every_layout(name: str, folders: dict[str, Path]) -> None:
    data = RobotDataSet(folders[name])
    assert (data.cameras, data.fps) == ((FRONT,), 10.0)
    episodes = list(data.read(cameras=[FRONT]))
    assert [(each.index, each.task) for each in episodes] == list(enumerate(TASKS))
    for each, length in zip(episodes, LENGTHS, strict=True):
        steps = range(length)
        assert each.images.shape == (length, 1, 64, 64, 3)
        expected = np.stack([expected_image(each.index, number)[None] for number in steps])
        off = np.abs(each.images.astype(int) - expected)
        assert off.mean() < (0.01 if name == "v30_images" else 4)  # videos lose some
        assert each.state[:, 1].tolist() == list(steps)
        np.testing.assert_allclose(each.actions[:, 0], np.arange(length) / 20, rtol=1e-6)


@pytest.mark.parametrize("name", MADE)
def test_frames_are_left_out_and_scaled(name: str, folders: dict[str, Path]) -> None:
    data = RobotDataSet(folders[name])
    (second,) = data.read(cameras=[FRONT], every=3, size=(16, 32), episodes=[1], state=None)
    assert second.images.shape == (4, 1, 16, 32, 3)
    assert kept_frames(8, 3) == [0, 3, 6, 7]
    assert second.actions[:, 0].tolist() == pytest.approx([0, 0.15, 0.3, 0.35])
    assert second.state.shape == (4, 0)


def test_instructions_are_matched_with_tasks_by_their_words(folders: dict[str, Path]) -> None:
    made = RobotDataSet(folders["v21"])
    assert tasks_of(made, tasks=["close_the_drawer", "other"]) == {
        "close the drawer": "close_the_drawer"
    }
    own = RobotDataSet(folders["siirl v3.0"])
    assert tasks_of(own, tasks=["task 0"]) == {"drawer-open": "task 0"}
    with pytest.raises(ValueError, match="has no episode of the tasks other"):
        tasks_of(made, tasks=["other"])


def test_clips_for_a_reward_come_from_a_data_set(folders: dict[str, Path]) -> None:
    clips = load_demonstration_clips(str(folders["v30"]), tasks=["drawer-open"], every=5)
    assert {task: [clip.shape for clip in found] for task, found in clips.items()} == {
        "drawer-open": [(4, 64, 64, 3)]
    }


def test_statistics_are_those_that_lerobot_computes(folders: dict[str, Path]) -> None:
    theirs, ours = (
        json.loads((folder / "meta" / "stats.json").read_text())
        for folder in (folders["v30"], folders["siirl v3.0"])
    )
    assert ours.keys() == theirs.keys()
    for name in ("action", "observation.state"):
        for kind in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(ours[name][kind], theirs[name][kind], atol=1e-6)
    for kind in ("min", "max", "mean"):  # 0.4.4 gives pictures a deviation of 0 within an episode
        np.testing.assert_allclose(ours[FRONT][kind], theirs[FRONT][kind], atol=0.005)


def test_statistics_of_pictures_are_those_of_layout_2(folders: dict[str, Path]) -> None:
    theirs, ours = (
        json.loads((folder / "meta" / "episodes_stats.jsonl").read_text().splitlines()[0])
        for folder in (folders["v21"], folders["siirl v2.1"])
    )
    for kind in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(
            ours["stats"][FRONT][kind], theirs["stats"][FRONT][kind], atol=0.005
        )


def test_the_deviation_over_episodes_is_that_of_all_frames() -> None:
    parts = [np.array([[0.0], [2.0]]), np.array([[4.0], [6.0], [8.0]])]
    merged = merged_statistics([FeatureStatistics.of_numbers(part) for part in parts])
    everything = np.concatenate(parts)
    assert merged.count == 5
    # the sums are BLAS's, whose order of additions depends on the processor
    assert merged.mean.item() == pytest.approx(everything.mean())
    assert merged.std.item() == pytest.approx(everything.std())


def broken(folder: Path, name: str, content: str | None) -> Path:
    """A copy of the data set with one file changed or, with None, missing."""
    shutil.copytree(HERE / "v21", folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    return folder


def changed_info(**values: Any) -> str:
    return json.dumps(json.loads((HERE / "v21" / "meta" / "info.json").read_text()) | values)


def changed_camera(**values: Any) -> str:
    features = json.loads((HERE / "v21" / "meta" / "info.json").read_text())["features"]
    return changed_info(features=features | {FRONT: features[FRONT] | values})


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("meta/info.json", "{", "cannot be read"),
        ("meta/info.json", "[]", "does not hold a JSON object"),
        (
            "meta/info.json",
            changed_info(codebase_version="v1.6"),
            "known versions are v2.1 and v3.0",
        ),
        ("meta/info.json", changed_info(features={"a": 1}), "is incomplete"),
        (
            "meta/info.json",
            changed_info(data_path="../../{episode_index}"),
            "not a file inside the data set",
        ),
        ("meta/info.json", changed_info(data_path="{nothing}"), "is incomplete"),
        ("meta/info.json", changed_info(data_path="{episode_index:>900000000}"), "cannot be read"),
        ("meta/info.json", changed_info(video_path="a" * 5000), "not a file inside the data set"),
        ("meta/info.json", changed_info(chunks_size=0), "is incomplete"),
        ("meta/info.json", changed_info(fps=0), r"fps=0; it must be above 0 and at most 10000"),
        ("meta/info.json", changed_info(fps=math.inf), "fps=inf"),
        ("meta/info.json", changed_camera(shape="64"), "it must be height, width and channels"),
        (
            "meta/info.json",
            changed_camera(shape=[64, "64", 3]),
            "it must be height, width and channels",
        ),
        ("meta/info.json", changed_camera(shape=[10**6, 10**6, 3]), "with at most 16777216 pixels"),
        ("meta/episodes.jsonl", "{}\n", "is incomplete"),
        ("meta/episodes.jsonl", None, "cannot be read"),
        (
            "meta/episodes.jsonl",
            '{"episode_index": "../../x", "tasks": ["a"], "length": 1}\n',
            "is incomplete: .*episode_index is '../../x', which is not a whole number",
        ),
        ("meta/info.json", changed_info(fps="ten"), "is incomplete: .*fps is 'ten'"),
        (
            "meta/episodes.jsonl",
            '{"episode_index": 0, "tasks": ["a"], "length": 0}\n',
            "Episode 0 of .* has 0 frames",
        ),
        ("data/chunk-000/episode_000000.parquet", "x", "cannot be read"),
        ("data/chunk-000/episode_000000.parquet", None, "cannot be read"),
        ("videos/chunk-000/observation.images.front/episode_000000.mp4", "x", "ends before frame"),
        ("videos/chunk-000/observation.images.front/episode_000000.mp4", None, "There is no video"),
    ],
)
def test_a_damaged_data_set_is_refused_with_file_and_remedy(
    name: str, content: str | None, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        list(RobotDataSet(broken(tmp_path / "copy", name, content)).read(cameras=[FRONT]))


def test_a_pipe_instead_of_a_table_is_refused_without_waiting(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "v30", tmp_path / "copy")
    file = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match=r"file-000\.parquet cannot be read"):
        RobotDataSet(folder)


def test_an_instruction_that_is_not_utf8_is_refused_with_its_file(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "v30", tmp_path / "copy")
    file = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    rows = parquet.read_table(file).to_pylist()
    bad = pyarrow.array([[b"\xdc"]] * len(rows), pyarrow.list_(pyarrow.binary()))
    table = pyarrow.Table.from_pylist([{**row, "tasks": None} for row in rows])
    tasks = bad.view(pyarrow.list_(pyarrow.string()))
    parquet.write_table(
        table.set_column(table.schema.get_field_index("tasks"), "tasks", tasks), file
    )
    with pytest.raises(ValueError, match=r"file-000\.parquet cannot be read: .*UTF8"):
        RobotDataSet(folder)


@pytest.mark.parametrize("side", [5_000, 13_500])  # the second is refused by Pillow already
def test_a_picture_that_would_fill_the_memory_is_refused(side: int, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(HERE / "v30_images", folder)
    (file,) = folder.glob("data/*/*.parquet")
    rows = parquet.read_table(file)
    content = io.BytesIO()
    Image.new("1", (side, side)).save(content, "PNG")
    pictures = rows[FRONT].to_pylist()
    pictures[0]["bytes"] = content.getvalue()
    column = pyarrow.array(pictures, rows.schema.field(FRONT).type)
    parquet.write_table(rows.set_column(rows.schema.names.index(FRONT), FRONT, column), file)
    with pytest.raises(ValueError, match="A picture "):
        list(RobotDataSet(folder).read(cameras=[FRONT]))


def test_a_constant_table_of_many_rows_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(HERE / "v30", folder)
    (file,) = folder.glob("data/*/*.parquet")
    rows = parquet.read_table(file).take(np.zeros(1_000_000, np.int64))
    with parquet.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        for _ in range(16):
            writer.write_table(rows)
    assert file.stat().st_size < 10_000_000
    # 4 actions, 4 numbers of the state and the episode's index
    with pytest.raises(ValueError, match=r"would unpack to 144000000 values, more than 134217728"):
        list(RobotDataSet(folder).read(cameras=[FRONT]))


def test_a_video_that_is_too_short_is_refused(tmp_path: Path) -> None:
    videos = "videos/chunk-000/observation.images.front"
    folder = broken(tmp_path / "copy", f"{videos}/episode_000001.mp4", None)
    film = np.zeros((3, 64, 64, 3), np.uint8)
    write_video(folder / videos / "episode_000001.mp4", film, frames_per_second=10)
    with pytest.raises(ValueError, match=r"episode_000001\.mp4 ends before frame 3"):
        list(RobotDataSet(folder).read(cameras=[FRONT]))


def test_rows_that_are_missing_are_refused(tmp_path: Path) -> None:
    file = "data/chunk-000/episode_000000.parquet"
    folder = broken(tmp_path / "copy", file, None)
    rows = parquet.read_table(HERE / "v21" / file)
    parquet.write_table(rows.slice(0, 5), folder / file)
    with pytest.raises(ValueError, match="has 5 frames for episode 0, which has 12 frames"):
        list(RobotDataSet(folder).read(cameras=[FRONT]))
    assert isinstance(rows, pyarrow.Table)


@pytest.mark.parametrize("values", [[["a"]], [[{"b": 1.0}]], ["c"]])
def test_actions_that_are_not_numbers_are_refused_with_their_file(
    values: list[Any], tmp_path: Path
) -> None:
    folder = broken(tmp_path / "set", "README.md", "")
    file = folder / "data" / "chunk-000" / "episode_000000.parquet"
    rows = parquet.read_table(file).to_pylist()
    parquet.write_table(
        pyarrow.Table.from_pylist([row | {"action": values[0]} for row in rows]), file
    )
    with pytest.raises(ValueError, match=r"episode_000000\.parquet, action: .*not numbers"):
        list(RobotDataSet(folder).read(cameras=[FRONT]))


def test_an_episode_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    settings = {"cameras": [FRONT], "fps": 10, "write_video": write_video}
    with pytest.raises(ValueError, match=r"Layout 'v1' is unknown; known are v2\.1, v3\.0"):
        DataSetWriter(tmp_path / "new", version="v1", **settings)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        DataSetWriter(tmp_path, **settings)
    with pytest.raises(ValueError, match="needs at least one episode"):
        DataSetWriter(tmp_path / "new", **settings).close()


@pytest.mark.slow  # starts another Python
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_the_lerobot_package_reads_what_siirl_writes(
    version: str, folders: dict[str, Path]
) -> None:
    """LEROBOT_PYTHON_V30 and _V21 name interpreters with lerobot 0.4.4 and 0.3.3."""
    python = os.environ.get(f"LEROBOT_PYTHON_{version.replace('.', '').upper()}")
    if python is None:
        pytest.skip("lerobot needs a separate environment: see make_lerobot.py")
    done = subprocess.run(
        [
            *python.split(),
            str(HERE / "make_lerobot.py"),
            "--check",
            str(folders[f"siirl {version}"]),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["version"], found["episodes"]) == (version, 2)
    assert found["tasks"] == [TASKS[0]] * 12 + [TASKS[1]] * 8
    assert [row[1] for row in found["states"]] == [*range(12), *range(8)]
    expected = [expected_image(e, n).mean() for e in (0, 1) for n in range(LENGTHS[e])]
    np.testing.assert_allclose(found["means"], expected, atol=2)
