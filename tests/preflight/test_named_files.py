"""Files that a job names: missing, truncated, and checkpoints to resume from."""

import json
import logging
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import save_torch_state_dict
from safetensors.numpy import save_file
from safetensors.torch import load_file

from siirl.dag_worker.manifest import resolve_checkpoint
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.paths import asset_path, config_dir, find
from siirl.files.weight_files import check_safetensors, parameters_in, weight_files
from siirl.params.parser import parse_config
from siirl.params.policies import WEIGHTS_OF_OTHERS
from siirl.preflight.check_embodied import check_policy
from siirl.preflight.check_text import check_player
from siirl.preflight.needed_files import file_problems, find_resume
from tests.preflight.camera_spec import SPEC

TEXT = ("env=math", "model=causal_lm")
GRPO = ["pipeline=grpo", "actor_rollout_ref.model.path=null"]  # needs no file at all


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A policy folder with 3 x 4 + 5 = 17 parameters."""
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(
        {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)},
        folder / "model.safetensors",
    )
    return folder


def problems(*overrides: str) -> list[str]:
    return [str(problem) for problem in file_problems(parse_config([*GRPO, *overrides]))]


def test_a_whole_file_has_its_parameters_counted(weights: Path) -> None:
    assert check_safetensors(weights / "model.safetensors") == 17
    assert parameters_in(str(weights)) == 17
    assert problems(f"actor_rollout_ref.model.path={weights}") == []


@pytest.fixture
def shards(weights: Path) -> Path:
    """The same 17 parameters in two files, with the index that Hugging Face's own function writes."""
    tensors = load_file(weights / "model.safetensors")
    (weights / "model.safetensors").unlink()
    save_torch_state_dict(tensors, weights, max_shard_size=48)  # the 3 x 4 numbers alone
    return weights


def test_weights_in_several_files_are_counted_together(shards: Path) -> None:
    names = [file.name for file in weight_files(shards)]
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert parameters_in(str(shards)) == 17
    assert problems(f"actor_rollout_ref.model.path={shards}") == []


@pytest.mark.parametrize("pickled", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_stray_files_beside_weights_in_pytorchs_format_are_not_the_models(
    weights: Path, pickled: str
) -> None:
    """transformers reads the pickled ones there."""
    (weights / "model.safetensors").rename(weights / "other.safetensors")
    assert weight_files(weights) == [weights / "other.safetensors"]
    (weights / pickled).touch()
    assert weight_files(weights) == []


@pytest.mark.parametrize("model", [(), TEXT])
def test_one_of_several_files_that_is_missing_or_truncated_is_named(
    shards: Path, model: tuple[str, ...]
) -> None:
    second = shards / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-1])
    (truncated,) = problems(*model, f"actor_rollout_ref.model.path={shards}")
    assert truncated.startswith(f"actor_rollout_ref.model.path: {second} (")
    assert "is not a complete safetensors file" in truncated
    second.unlink()
    (missing,) = problems(*model, f"actor_rollout_ref.model.path={shards}")
    assert missing == (
        f"actor_rollout_ref.model.path: {shards} lacks {second.name}: model.safetensors.index.json "
        "names 2 files that together hold the weights. Copy or download the missing ones."
    )


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[]",
        '{"weight_map": {}}',
        '{"weight_map": {"a": "../a.safetensors"}}',
        '{"weight_map": {"a": 1}}',
    ],
)
def test_an_index_that_names_no_files_of_its_folder_is_refused(shards: Path, index: str) -> None:
    file = shards / "model.safetensors.index.json"
    file.write_text(index)
    (found,) = problems(f"actor_rollout_ref.model.path={shards}")
    said = "does not say which files hold the weights (" if index else "is damaged. Expected: JSON."
    assert found.startswith(f"actor_rollout_ref.model.path: {file} {said}")


def test_a_whole_file_is_read_and_not_the_files_beside_it(weights: Path) -> None:
    """A checkpoint has the moments of Adam beside the weights; transformers takes the whole file
    before an index, too.
    """
    save_file({"moment": np.zeros(9, np.float32)}, weights / "optimizer.safetensors")
    (weights / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "optimizer.safetensors"}}'
    )
    assert parameters_in(str(weights)) == 17


@pytest.mark.parametrize("kept", [0, 4, 20, -1])
def test_a_truncated_file_is_refused_with_its_size(weights: Path, kept: int) -> None:
    file = weights / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])
    with pytest.raises(
        CheckpointError, match=r"is not a complete safetensors file.*Copy or make it again"
    ):
        check_safetensors(file)
    assert str(file) in problems(f"actor_rollout_ref.model.path={weights}")[0]


def test_a_tensor_with_more_numbers_than_bits_is_refused(weights: Path) -> None:
    file = weights / "model.safetensors"
    file.write_bytes(
        file.read_bytes().replace(b'"shape":[5]', b'"shape":[9]').replace(b"[3,4]", b"[999]")
    )
    with pytest.raises(CheckpointError, match=r"a of shape \[999\] has 48 bytes"):
        check_safetensors(file)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="is not a readable file"):
        check_safetensors(tmp_path / "model.safetensors")


def test_a_header_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A file with a hole, of which nothing lies on the disk; the safetensors library reads headers
    up to 100 MB.
    """
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", 5 * 10**9))
        stream.truncate(6 * 10**9)
    with pytest.raises(CheckpointError, match="its header alone would take 5000000000 bytes"):
        check_safetensors(file)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 3) + b"abc",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 7) + b'{"a":1}',
    ],
)
def test_a_file_with_another_header_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError):
        check_safetensors(file)


def test_a_missing_policy_folder_is_refused_with_the_remedy() -> None:
    found = problems("actor_rollout_ref.model.path=no/where")
    assert len(found) == 1
    assert found[0].startswith("actor_rollout_ref.model.path=no/where: there is no folder")
    assert "siirl warm-start" in found[0]


@pytest.mark.parametrize("job", [(), TEXT])
def test_a_run_given_as_policy_is_refused_with_the_folder_of_its_newest_policy(
    job: tuple[str, ...], tmp_path: Path
) -> None:
    run = make_run(tmp_path, "2026-01-01", steps=2)
    newest = run / "checkpoints" / "step_1"
    (newest / "manifest.json").write_text("{}")
    (found,) = problems(*job, f"actor_rollout_ref.model.path={run}")
    assert "newest policy" not in found
    (newest / "actor").mkdir()
    (newest / "actor/config.json").write_text("{}")
    for place in (run, run / "checkpoints", newest):
        (found,) = problems(*job, f"actor_rollout_ref.model.path={place}")
        assert found.endswith(f"Type: actor_rollout_ref.model.path={newest / 'actor'}")


@pytest.mark.parametrize("policy", list(WEIGHTS_OF_OTHERS))
def test_a_policy_without_own_weights_is_offered_neither_new_ones_nor_a_warm_start(
    policy: str, tmp_path: Path
) -> None:
    job = (f"model={policy}", "actor_rollout_ref.actor.use_kl_loss=true")
    paths = [f"actor_rollout_ref.{part}.path={tmp_path}" for part in ("model", "ref")]
    own, reference = problems("env=libero", *job, *paths)
    with pytest.raises(ConfigError) as refused:
        check_policy(parse_config(["env=libero", f"model={policy}"]), SPEC)
    assert own == f"{paths[0]}: there is no *.safetensors in {tmp_path}; {refused.value}"
    assert reference.startswith(f"{paths[1]}: there is no *.safetensors in {tmp_path}; ")
    assert f"set actor_rollout_ref.ref.path to {WEIGHTS_OF_OTHERS[policy]}" in reference
    assert reference.endswith(", or to null for the policy's initial weights.")
    assert not any("warm-start" in one or "new weights" in one for one in (own, reference))


IN_ITS_PLACE = (
    "give a folder with config.json, model.safetensors and a tokenizer, a hub id "
    "(organisation/model), or "
)


@pytest.mark.parametrize(
    ("description", "told"),
    [
        ({"model_type": "no_such_type"}, "has model type `no_such_type` but Transformers"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "configuration.OwnConfig"}},
            r"If you trust it, set actor_rollout_ref\.model\.trust_remote_code=true\.$",
        ),
    ],
)
def test_an_unknown_architecture_is_refused_without_a_warning_of_transformers(
    description: dict[str, object], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(asset_path("tiny_lm"), tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(description))
    config = parse_config(["pipeline=grpo", *TEXT, f"actor_rollout_ref.model.path={folder}"])
    of_transformers = logging.getLogger("transformers")
    of_transformers.addHandler(caplog.handler)
    try:
        with pytest.raises(ConfigError, match=told):
            check_player(config)
    finally:
        of_transformers.removeHandler(caplog.handler)
    assert not caplog.records


def test_a_language_model_is_never_new_and_the_remedy_names_the_alternatives() -> None:
    (found,) = problems(*TEXT, "actor_rollout_ref.model.path=no/such/folder")
    assert found.startswith(
        "actor_rollout_ref.model.path=no/such/folder: there is no folder no/such/folder; "
    )
    assert found.endswith(f"{IN_ITS_PLACE}use model=tiny_lm.")
    assert "null" not in found


def test_the_remedy_of_a_reference_is_the_policys_own_start() -> None:
    use_kl = (
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.ref.path=no/such/folder",
    )
    (text,) = problems("env=math", *use_kl)
    (robots,) = problems(*use_kl)
    assert text.endswith(f"{IN_ITS_PLACE}null for the policy's initial weights.")
    assert "or null" not in robots
    assert "null for the policy's initial weights, or make one: siirl warm-start." in robots


def test_what_may_be_a_hub_id_is_left_to_the_hub_by_language_models_alone() -> None:
    assert problems(*TEXT, "actor_rollout_ref.model.path=outputs/model") == []
    assert len(problems("actor_rollout_ref.model.path=outputs/model")) == 1


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_policy_folder_without_one_of_its_files_is_refused(weights: Path, name: str) -> None:
    (weights / name).unlink()
    found = problems(f"actor_rollout_ref.model.path={weights}")
    assert len(found) == 1
    assert f"in {weights}" in found[0]


@pytest.mark.parametrize("job", [(), TEXT])
def test_adapters_of_peft_without_their_model_are_to_be_merged(
    job: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "adapter_model.safetensors")
    (found,) = problems(*job, f"actor_rollout_ref.model.path={tmp_path}")
    assert "has adapters of peft" in found
    assert found.endswith("merge_and_unload()`.")  # not: remove the file to do without them


def test_a_reference_is_checked_only_if_a_kl_needs_it() -> None:
    assert problems("actor_rollout_ref.ref.path=no/where") == []
    found = problems(
        "actor_rollout_ref.ref.path=no/where", "actor_rollout_ref.actor.use_kl_loss=true"
    )
    assert len(found) == 1
    assert found[0].startswith("actor_rollout_ref.ref.path=no/where")


@pytest.mark.parametrize(
    ("encoder", "refused"),
    [
        ("./nowhere", True),
        ("tinyy", True),
        ("x/y.pt", True),
        ("org/model", False),
        ("pixels", False),
    ],
)
def test_an_encoder_is_a_known_name_a_path_or_a_hub_id(encoder: str, refused: bool) -> None:
    found = problems("reward=srpo", f"reward.encoder={encoder}")
    assert len(found) == refused
    assert all(
        message.startswith(f"reward.encoder={encoder}: no such file or folder. Known: tiny")
        for message in found
    )


def test_a_folder_that_holds_no_encoder_is_refused(tmp_path: Path) -> None:
    assert "there is no config.json" in problems("reward=srpo", f"reward.encoder={tmp_path}")[0]


def test_an_encoder_is_checked_only_for_video_rewards() -> None:
    assert problems("reward=success", "reward.encoder=./nowhere") == []


@pytest.mark.parametrize(
    "override", ["reward.demonstrations=no/where", "dag.workflow_file=no/where.yaml"]
)
def test_other_missing_files_are_refused(override: str) -> None:
    found = problems("reward=srpo", "reward.encoder=pixels", override)
    assert len(found) == 1
    assert found[0].startswith(override)


def test_shipped_folders_are_found_in_a_checkout(repository: Path) -> None:
    assert config_dir() == repository / "configs"
    assert asset_path("x") == repository / "assets" / "x"


def test_assets_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find("assets/some/thing") == repository / "assets" / "some" / "thing"
    assert find("other/thing") == Path("other/thing")


def test_a_file_of_the_users_own_assets_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "assets").mkdir()
    assert find("assets") == Path("assets")


# Checkpoints to resume from


def resume(output_dir: Path, value: str) -> Path | None:
    return find_resume(
        parse_config(
            [
                f"trainer.output_dir={output_dir}",
                "trainer.experiment_name=x",
                f"trainer.resume={value}",
            ]
        ).trainer
    )


def make_run(output_dir: Path, time: str, *, steps: int) -> Path:
    run = output_dir / "x" / time
    for step in range(steps):
        (run / "checkpoints" / f"step_{step}").mkdir(parents=True)
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text("")
    if steps:
        (run / "checkpoints" / "latest").write_text(f"step_{steps - 1}")
    return run


def test_auto_takes_the_newest_run_that_has_a_checkpoint(tmp_path: Path) -> None:
    make_run(tmp_path, "2026-01-01", steps=1)
    wanted = make_run(tmp_path, "2026-01-02", steps=2)
    make_run(tmp_path, "2026-01-03", steps=0)
    assert resume(tmp_path, "auto") == wanted


def test_a_run_whose_pointer_is_missing_resumes_all_the_same(tmp_path: Path) -> None:
    run = tmp_path / "x" / "2026-01-01"
    for step in (2, 10):
        folder = run / "checkpoints" / f"step_{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    (run / "checkpoints" / "step_00000011").mkdir()
    (run / "config.yaml").write_text("")
    assert resume(tmp_path, "auto") == resume(tmp_path, str(run)) == run
    assert resolve_checkpoint(run).name == "step_00000010"


def test_auto_starts_anew_where_there_is_nothing(tmp_path: Path) -> None:
    assert resume(tmp_path, "auto") is None
    assert resume(tmp_path, "null") is None


def test_a_run_or_one_of_its_checkpoints_is_taken_as_given(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-01-01", steps=1)
    assert resume(tmp_path, str(run)) == run
    assert resume(tmp_path, str(run / "checkpoints" / "step_0")) == run / "checkpoints" / "step_0"


def test_a_run_without_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no checkpoint"):
        resume(tmp_path, str(make_run(tmp_path, "2026-01-01", steps=0)))


def test_an_empty_word_is_not_the_current_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.resume is empty: name a run folder"):
        resume(tmp_path, "")


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingAssetError, match="there is no such folder"):
        resume(tmp_path, str(tmp_path / "nowhere"))
