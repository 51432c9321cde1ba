"""`hf://` places: parsed, downloaded once from a local server that answers as the Hub, pinned."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from siirl.errors import ConfigError, MissingAssetError
from siirl.files.hub_place import DATASET, HubPlace, hub_place, is_hub_id
from siirl.files.paths import find_model
from tests.local_hub import LocalHub, local_hub

REPOSITORY = Path(__file__).resolve().parents[2]
ASK = """
import json, sys
from siirl.errors import SiirlError
from siirl.files.hub_files import local_copy
from siirl.files.hub_place import hub_place

def found(text):
    path, pinned = local_copy(hub_place(text, place="key"), key="key")
    entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else path.read_text()
    return {"pinned": str(pinned), "entries": entries}

def questions(text, key="data.train_files"):
    from siirl.data_coordinator.prompts.joined_files import open_prompt_files
    files = open_prompt_files([text], key=key)
    return [row.ground_truth for row in files.read(range(len(files)))]

def pinned(*words):
    from siirl.params.parser import parse_config
    from siirl.preflight.hub_pins import pin_hub_places
    config = parse_config(words)
    pin_hub_places(config)
    return [config.actor_rollout_ref.model.path, *config.data.train_files]

def outcome(name, *arguments):
    try:
        return globals()[name](*arguments)
    except SiirlError as error:
        return f"{type(error).__name__}: {error}"

print(json.dumps([outcome(*call) for call in json.loads(sys.argv[1])]))
"""


def rows(*truths: str) -> bytes:
    """Parquet in verl's layout."""
    table = pyarrow.Table.from_pylist(
        [
            {
                "data_source": "my/sums",
                "prompt": [{"role": "user", "content": f"what is {truth}?"}],
                "ability": "math",
                "reward_model": {"style": "whole", "ground_truth": truth},
                "extra_info": {"index": 0},
            }
            for truth in truths
        ]
    )
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    with local_hub(tmp_path_factory.mktemp("hub")) as served:
        weights = {"config.json": b"{}", "model.safetensors": b"weights", "model.gguf": b"others"}
        served.add("models", "me/policy", {**weights, "run_3/config.json": b"{3}"})
        served.add(
            "datasets",
            "me/sums",
            {
                "README.md": b"# sums",
                "train-00000-of-00002.parquet": rows("1", "2"),
                "train-00001-of-00002.parquet": rows("3"),
                "test-00000-of-00001.parquet": rows("4"),
            },
        )
        served.add(
            "datasets",
            "me/two",
            {"easy/train.parquet": rows("5"), "hard/train.parquet": rows("6")},
        )
        yield served


def ask(hub_url: str, home: Path, *calls: list[Any], **environment: str) -> list[Any]:
    """Outcomes of calls in a process that may ask the Hub: the tests' own is offline."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(calls)],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": hub_url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answers(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    calls = {
        "whole": ["found", "hf://me/policy"],
        "folder": ["found", "hf://me/policy@v1/run_3"],
        "file": ["found", "hf://me/policy/run_3/config.json"],
        "no revision": ["found", "hf://me/policy@v9"],
        "no path": ["found", "hf://me/policy/run_4"],
        "no repository": ["found", "hf://me/nothing"],
        "training": ["questions", "hf://datasets/me/sums"],
        "held-out": ["questions", "hf://me/sums", "data.val_files"],
        "one file": ["questions", "hf://me/sums/test-00000-of-00001.parquet"],
        "two folders": ["questions", "hf://me/two"],
        "hard": ["questions", "hf://me/two/hard"],
        "pinned": [
            "pinned",
            *(
                "env=metaworld",
                "actor_rollout_ref.model.path=me/policy",
                "data.train_files=[me/two]",
            ),
        ],
    }
    found = ask(hub.url, tmp_path_factory.mktemp("home"), *calls.values())
    return dict(zip(calls, found, strict=True))


def commit(hub: LocalHub, kind: str, name: str) -> str:
    return hub.commit(hub.root / kind / name)


def test_a_repository_is_downloaded_without_weights_for_other_programs(
    hub: LocalHub, answers: dict[str, Any]
) -> None:
    assert answers["whole"] == {
        "pinned": f"hf://me/policy@{commit(hub, 'models', 'me/policy')}",
        "entries": ["config.json", "model.safetensors", "run_3"],
    }


def test_a_folder_and_a_file_of_a_revision_are_found(
    hub: LocalHub, answers: dict[str, Any]
) -> None:
    at = commit(hub, "models", "me/policy")
    assert answers["folder"] == {
        "pinned": f"hf://me/policy@{at}/run_3",
        "entries": ["config.json"],
    }
    assert answers["file"]["entries"] == "{3}"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("no revision", "MissingAssetError: key=hf://me/policy@v9: it has no revision v9."),
        ("no path", "MissingAssetError: key=hf://me/policy/run_4: the repository has no run_4."),
        ("no repository", "MissingAssetError: key=hf://me/nothing: the Hub has no such public"),
        ("two folders", "ConfigError: data.train_files=hf://me/two has training files in several"),
    ],
)
def test_a_file_that_the_hub_lacks_is_named(
    call: str, sentence: str, answers: dict[str, Any]
) -> None:
    assert answers[call].startswith(sentence)


def test_a_data_set_gives_the_files_of_the_split(answers: dict[str, Any]) -> None:
    assert answers["training"] == ["1", "2", "3"]
    assert answers["held-out"] == ["4"]
    assert answers["one file"] == ["4"]
    assert answers["hard"] == ["6"]


def test_the_configuration_of_a_run_names_commits(hub: LocalHub, answers: dict[str, Any]) -> None:
    assert answers["pinned"] == [
        f"hf://me/policy@{commit(hub, 'models', 'me/policy')}",
        f"hf://datasets/me/two@{commit(hub, 'datasets', 'me/two')}",
    ]


def test_a_complete_copy_serves_when_the_hub_does_not_answer(hub: LocalHub, tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    at = commit(hub, "models", "me/policy")
    [first] = ask(hub.url, tmp_path / "home", ["found", "hf://me/policy"])
    asked = len(hub.asked)
    again, pinned = ask(
        nobody, tmp_path / "home", ["found", "hf://me/policy"], ["found", f"hf://me/policy@{at}"]
    )
    offline, missing = ask(
        hub.url,
        tmp_path / "home",
        ["found", "hf://me/policy"],
        ["found", "hf://me/other"],
        HF_HUB_OFFLINE="1",
    )
    assert again == pinned == offline == first
    assert len(hub.asked) == asked
    assert "HF_HUB_OFFLINE is set, and the cache has no complete copy" in missing
    [unreachable] = ask(nobody, tmp_path / "empty", ["found", "hf://me/policy"])
    assert "the Hub could not be reached" in unreachable


def test_a_plain_id_of_a_model_is_looked_up_and_a_missing_one_names_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        MissingAssetError,
        match=r"^checkpoint=some/policy: there is no folder some/policy here; as an id on the Hub: HF_",
    ):
        find_model("some/policy", key="checkpoint")
    (tmp_path / "some/policy").mkdir(parents=True)
    assert find_model("some/policy", key="checkpoint") == Path("some/policy")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("hf://a/b", HubPlace("model", "a/b")),
        ("hf://a/b/", HubPlace("model", "a/b")),
        ("hf://a/b@v2/c/d", HubPlace("model", "a/b", "v2", "c/d")),
        ("hf://datasets/a/b", HubPlace("dataset", "a/b")),
        ("hf://a/b@refs/pr/3/c", HubPlace("model", "a/b", "refs/pr/3", "c")),
        (
            "hf://datasets/a/b@refs/convert/parquet/main",
            HubPlace("dataset", "a/b", "refs/convert/parquet", "main"),
        ),
    ],
)
def test_a_hub_place_is_read_and_written(text: str, place: HubPlace) -> None:
    assert hub_place(text, place="key") == place
    assert hub_place(str(place), place="key") == place


@pytest.mark.parametrize("text", ["hf://a", "hf://", "hf://a/b@", "hf://a/b/../c", "hf://a b/c"])
def test_an_invalid_hub_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a location on the Hub: write hf://owner/name"):
        hub_place(text, place="key")


def test_other_texts_are_not_hub_places() -> None:
    assert hub_place("outputs/run", place="key") is None
    place = hub_place("hf://a/b", place="data.train_files", kind=DATASET)
    assert place is not None and place.kind == DATASET
    assert [is_hub_id(text) for text in ("a/b", "assets/b", "a", "a/b/c", "/a/b")] == [
        *(True, False, False, False, False)
    ]


@pytest.mark.slow  # a run of a step and an evaluation: half a minute
def test_a_run_trains_a_model_of_the_hub_on_a_data_set_of_the_hub(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add_folder("models", "me/tiny", REPOSITORY / "assets" / "tiny_lm")
    hub.add_folder("models", "me/robot", REPOSITORY / "assets" / "tiny_vla")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
    }

    def siirl(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "siirl", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    siirl(
        *("train", "pipeline=grpo", "env=math", "trainer=smoke", "model=causal_lm"),
        *("actor_rollout_ref.model.path=hf://me/tiny@v1", "data.train_files=[me/sums]"),
        *("data.val_files=[hf://me/sums]", "data.train_batch_size=2", "trainer.total_steps=1"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "data.max_response_length=8"),
        "actor_rollout_ref.model.dtype=float32",
    )
    [config] = tmp_path.glob("outputs/*/*/config.yaml")
    sums = f"hf://datasets/me/sums@{commit(hub, 'datasets', 'me/sums')}"
    text = config.read_text()
    assert f"path: hf://me/tiny@{commit(hub, 'models', 'me/tiny')}" in text
    assert text.count(sums) == 2
    siirl(
        *("evaluate", "checkpoint=hf://me/robot", "env=metaworld", "trainer.val_episodes=1"),
        *("actions=argmax", "env.max_episode_steps=8", "trainer.record_val_episodes=0"),
    )
    siirl("export", "hf://me/tiny", "--output", str(tmp_path / "again"))
    assert (tmp_path / "again" / "model.safetensors").stat().st_size > 0
