"""A checkpoint's damaged metadata is either read or refused with a CheckpointError that
names the file.
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from damage import damaged_bytes, damaged_values, damages
from hypothesis import HealthCheck, given, settings, strategies
from tiny_training import make_engine

from siirl.dag_worker import manifest as manifest_of
from siirl.dag_worker.agent_groups import load_state
from siirl.dag_worker.checkpoint import CheckpointManager, read_manifest, resolve_checkpoint
from siirl.engine.training.collectives import OneProcess
from siirl.errors import CheckpointError, ConfigError
from siirl.execution.dag import Node, NodeType, TaskGraph
from siirl.execution.dag.builtin_pipelines import grpo_pipeline
from siirl.files.weight_files import check_safetensors, weight_files
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.adapters import stored_adapters
from siirl.models.policy_loader import load_policy, save_policy
from siirl.models.tiny_vla import TinyVLA, TinyVLAConfig
from siirl.params.compose import load_file
from siirl.terminal.resume_line import describe_resume

MANY = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    manager(folder).save(step=3, state={"loader": {"epoch": 1}})
    return folder


def manager(folder: Path) -> CheckpointManager:
    return CheckpointManager(
        folder=folder / "checkpoints", engines={"actor": make_engine()}, ranks=OneProcess()
    )


def replaced(file: Path, content: bytes):
    """A context in which `file` holds `content`."""

    class Replaced:
        def __enter__(self) -> None:
            self.before = file.read_bytes()
            file.write_bytes(content)

        def __exit__(self, *error: object) -> None:
            file.write_bytes(self.before)

    return Replaced()


@MANY
@given(data=strategies.data())
def test_a_damaged_manifest_is_read_or_refused_by_name(
    whole: Path, data: strategies.DataObject
) -> None:
    file = resolve_checkpoint(whole) / "manifest.json"
    with replaced(file, data.draw(damages(file))):
        try:
            manifest = read_manifest(file.parent)
        except CheckpointError as error:
            assert str(file.parent) in str(error)
        else:
            assert type(manifest["step"]) is int and manifest["step"] >= 0
            assert {"state.pt", "actor/model.safetensors"} <= manifest["files"].keys()


@MANY
@given(
    content=strategies.one_of(
        strategies.binary(max_size=30),
        strategies.sampled_from([b"..", b"/etc", b"a\0b", b"x" * 300, b"."]),
    )
)
def test_a_damaged_pointer_is_read_or_refused_by_name(whole: Path, content: bytes) -> None:
    pointer = whole / "checkpoints" / "latest"
    with replaced(pointer, content):
        try:
            assert resolve_checkpoint(whole).parent == pointer.parent
        except CheckpointError as error:
            assert str(pointer.parent) in str(error)
        assert describe_resume(whole).endswith(
            f"Resume with the same command and trainer.resume={whole}"
        )  # the last message of a run never fails


@pytest.mark.parametrize("name", ["manifest.json", "state.pt", "actor/model.safetensors"])
def test_a_folder_in_place_of_a_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    jobs = manager(tmp_path)
    file = jobs.save(step=1, state={}) / name
    file.unlink()
    file.mkdir()
    with pytest.raises(CheckpointError, match="step_00000001"):
        jobs.load()


@MANY
@given(data=strategies.data())
def test_damaged_state_is_refused_by_name(whole: Path, data: strategies.DataObject) -> None:
    """Also if the manifest has its digest: torch's error becomes a CheckpointError."""
    folder = resolve_checkpoint(whole)
    file, manifest = folder / "state.pt", folder / "manifest.json"
    content = file.read_bytes()
    position = data.draw(strategies.integers(0, len(content) - 1))
    rest = data.draw(strategies.sampled_from([b"", content[position + 3 :]]))
    damaged = content[:position] + data.draw(strategies.binary(max_size=3)) + rest
    with replaced(file, damaged), replaced(manifest, manifest.read_bytes()):
        write_digest(folder, "state.pt")
        try:
            assert isinstance(manager(whole).load().state, dict)
        except CheckpointError as error:
            assert str(file) in str(error)


def write_digest(folder: Path, name: str) -> None:
    """Write a file's digest, as it is now, into the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = manifest_of.fingerprint(folder / name)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("state", [[], None, 3, "text"])
def test_a_state_that_is_not_a_dict_is_refused_by_name(tmp_path: Path, state: object) -> None:
    jobs = manager(tmp_path)
    folder = jobs.save(step=1, state={})
    torch.save(state, folder / "state.pt")
    write_digest(folder, "state.pt")
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        jobs.load()


def test_a_file_that_the_manifest_does_not_name_is_not_taken(tmp_path: Path) -> None:
    jobs = manager(tmp_path)
    folder = jobs.save(step=1, state={})
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["state.pt"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json.*state\.pt"):
        jobs.load()


def test_a_manifest_reads_no_file_outside_its_folder(tmp_path: Path) -> None:
    jobs = manager(tmp_path)
    folder = jobs.save(step=1, state={})
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../secret"] = {"bytes": 6, "sha256": "0" * 64}
    (tmp_path / "secret").write_text("secret")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        jobs.load()


@pytest.mark.parametrize("state", [{}, {"loader": None}, {"loader": {}, "reward": 3}])
def test_the_state_of_another_job_is_refused_with_a_sentence(state: dict) -> None:
    class Parts:
        def load_state(self, state: dict) -> None:
            self.epoch = state["loader"]["epoch"]

    with pytest.raises(CheckpointError, match=r"holds a state that this job cannot load"):
        load_state(Parts(), state, folder=Path("somewhere"), graph=TaskGraph("g"))


@pytest.mark.parametrize("name", ["compute_reward", "data_rebalance"])
def test_leftover_rows_of_an_older_checkpoint_go_to_the_node_that_shares_rows(name: str) -> None:
    class Parts:
        def load_state(self, state: dict) -> None:
            self.leftovers = state["redistribution"]

    parts, graph = Parts(), grpo_pipeline()
    graph.add_node(
        Node(
            "data_rebalance",
            NodeType.COMPUTE,
            executable_ref="siirl.dag_worker.stages:data_rebalance",
        )
    )
    load_state(parts, {"redistribution": {name: ["a row"]}}, folder=Path("somewhere"), graph=graph)
    assert parts.leftovers == {"data_rebalance": ["a row"]}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_checkpoint_of_another_user_is_refused_by_name(tmp_path: Path) -> None:
    jobs = manager(tmp_path)
    file = jobs.save(step=1, state={}) / "manifest.json"
    file.chmod(0)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        jobs.load()


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy, as a checkpoint's actor/ holds it."""
    folder = tmp_path_factory.mktemp("policy")
    bounds = ActionTokenizer(bins=4, low=(-1.0, -1.0), high=(1.0, 1.0))
    save_policy(
        TinyVLA(
            TinyVLAConfig(action_tokenizer=bounds, chunk_length=2, proprioception_size=3, width=8)
        ),
        folder,
    )
    return folder


@MANY
@given(data=strategies.data())
def test_a_damaged_description_of_a_policy_is_read_or_refused_by_name(
    policy_folder: Path, data: strategies.DataObject
) -> None:
    """One that is read has weights of its shape, so that it can act."""
    file = policy_folder / "config.json"
    with replaced(file, data.draw(damages(file))):
        try:
            policy = load_policy(policy_folder)
        except (CheckpointError, ConfigError) as error:
            assert str(policy_folder) in str(error)
        else:
            words = torch.from_numpy(policy.tokenize_instruction("reach the goal"))[None]
            size = policy.config.proprioception_size
            assert (
                policy(
                    pixel_values=None, proprioception=torch.zeros(1, size), instruction_ids=words
                )
                .logits.isfinite()
                .all()
            )


@MANY
@given(data=strategies.data())
def test_a_damaged_header_of_weights_is_read_or_refused_by_name(
    policy_folder: Path, data: strategies.DataObject
) -> None:
    file = policy_folder / "model.safetensors"
    whole = file.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:length]
    damaged = data.draw(
        strategies.one_of(
            damaged_bytes(whole),
            damaged_header(header).map(lambda text: packed(text) + whole[length:]),
        )
    )
    with replaced(file, damaged):
        try:
            check_safetensors(file)
            load_policy(policy_folder)
        except CheckpointError as error:
            assert str(policy_folder) in str(error)


def damaged_header(header: bytes) -> strategies.SearchStrategy[bytes]:
    return strategies.one_of(damaged_values(json.loads(header)), damaged_bytes(header))


def packed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


INDEX = {
    "metadata": {"total_size": 10},
    "weight_map": {"trunk.0.weight": "model-1.safetensors", "head.weight": "model-2.safetensors"},
}


@MANY
@given(content=strategies.one_of(damaged_values(INDEX), damaged_bytes(json.dumps(INDEX).encode())))
def test_a_damaged_index_of_weights_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))):
        weight_files(tmp_path)


ADAPTERS = {"rank": 4, "alpha": 32.0, "target_modules": ["head", "trunk"], "dropout": 0.0}


@MANY
@given(
    content=strategies.one_of(
        damaged_values(ADAPTERS), damaged_bytes(json.dumps(ADAPTERS).encode())
    )
)
def test_a_damaged_description_of_adapters_is_read_or_refused_by_name(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "lora.json").write_bytes(content)
    try:
        lora = stored_adapters(tmp_path)
    except CheckpointError as error:
        assert str(tmp_path / "lora.json") in str(error)
    else:
        assert lora is not None and lora.rank >= 1 and lora.alpha * 0 == 0


@MANY
@given(content=damaged_bytes(b"trainer:\n  total_steps: 3\nenv:\n  name: gymnasium\n"))
def test_a_damaged_configuration_of_a_run_is_read_or_refused_by_name(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    try:
        load_file(tmp_path / "config.yaml")
    except ConfigError as error:
        assert str(tmp_path / "config.yaml") in str(error)
