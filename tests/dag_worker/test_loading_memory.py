"""Memory of a rank while it loads its policy: little more than the weights that it keeps.

A model of 58 million random weights is loaded in a process of its own.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_at_work import run_on_ranks
from torch import nn

from benchmarks.memory_meter import peak_bytes, qwen_config, reset_peak, resident_bytes, write_model
from siirl.dag_worker.embodied_components import EmbodiedBuilder
from siirl.dag_worker.text_components import TextBuilder
from siirl.engine.training.collectives import OneProcess
from siirl.models import language_model, policy
from siirl.models.chat import load_chat_tokenizer
from siirl.models.stored_tensors import StoredTensors
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config
from tests.dag_worker.two_groups import TwoGroups
from tests.models.tiny_openvla import know_tiny_encoders, write_checkpoint

SIZES = qwen_config(layers=6, width=640, hidden=2560)
JOB = (
    "env=math", "env.tasks=[sums-1]", "pipeline=grpo", "data.train_batch_size=2", "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "env.envs_per_server=8",
    "env.num_servers=1", "trainer.val_episodes=2", "trainer.max_minutes=null", "trainer.threads_per_rank=1",
    "actor_rollout_ref.model.dtype=bfloat16",
)  # fmt: skip
ONE_ROLLS_OUT = ("trainer.n_gpus_per_node=3", "dag.groups={rollout: 1, train: 2}")
ADAPTERS = "actor_rollout_ref.model.lora.rank=2"
MOST = 1.3
"""Largest growth of a rank's memory in units of the weights that it keeps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    write_model(place, SIZES)
    load_chat_tokenizer("assets/tiny_lm").save(place)
    return place


def words(folder: Path, *further: str) -> tuple[str, ...]:
    return (*JOB, f"actor_rollout_ref.model.path={folder}", *further)


def begin() -> int:
    """Bytes of this process with what is imported and made once."""
    torch.set_num_threads(1)
    language_model.load_language_model("assets/tiny_lm", weights=False)
    reset_peak()
    return resident_bytes()


def held_bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in module.state_dict().values())


def rollout_rank(ranks: Any, folder: Path, run: Path) -> tuple[float, set[torch.dtype]]:
    """Growth while the components of a rollout rank are built and its weights arrive, and their
    types.
    """
    before = begin()
    worker: Any = TwoGroups(run, words(folder, *ONE_ROLLS_OUT)).factory(rank=2, init_method="")
    [parts] = worker.build().values()
    weights = list(parts.acting.parameters())
    with torch.no_grad():
        for weight in weights:
            weight.zero_()
    growth = (peak_bytes() - before) / held_bytes(parts.acting)
    return growth, {weight.dtype for weight in weights}


def test_a_rollout_rank_gets_memory_for_its_weights_once(folder: Path, tmp_path: Path) -> None:
    [(growth, types)] = run_on_ranks(rollout_rank, folder, tmp_path / "run", ranks=1)
    assert types == {torch.bfloat16}
    assert growth < MOST


def freeze(model: nn.Module, *_: Any, **__: Any) -> None:
    """Stands for adapters, which need imports of seconds."""
    model.requires_grad_(False)


def training_rank(ranks: Any, folder: Path, adapters: bool) -> tuple[float, set[torch.dtype]]:
    """Growth while the trained policy of a single rank is loaded, and the types of its weights."""
    language_model.add_adapters = freeze
    config = parse_config(words(folder, *([ADAPTERS] if adapters else [])))
    builder = TextBuilder(
        config, describe_env(config), ranks=OneProcess(), device=torch.device("cpu")
    )
    before = begin()
    model = builder.load()
    growth = (peak_bytes() - before) / held_bytes(model)
    return growth, {weight.dtype for weight in model.parameters()}


@pytest.mark.parametrize(
    ("adapters", "kept"),
    [(True, torch.bfloat16), (False, torch.float32)],
    ids=["below adapters", "trained"],
)
def test_one_rank_reads_weights_in_the_type_in_which_it_keeps_them(
    folder: Path, adapters: bool, kept: torch.dtype
) -> None:
    [(growth, types)] = run_on_ranks(training_rank, folder, adapters, ranks=1)
    assert types == {kept}
    assert growth < MOST


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_frozen_weights_of_a_robot_policy_are_read_in_the_compute_dtype(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    know_tiny_encoders(monkeypatch)
    monkeypatch.setattr(policy, "add_adapters", freeze)
    filled: list[torch.dtype] = []
    fill = StoredTensors.fill

    def watched(stored: StoredTensors, name: str, target: torch.Tensor) -> None:
        filled.append(target.dtype)
        fill(stored, name, target)

    monkeypatch.setattr(StoredTensors, "fill", watched)
    config = parse_config(
        [
            *("pipeline=grpo", "env=libero", "env.assets=stand_in", "model=openvla_oft"),
            f"actor_rollout_ref.model.path={write_checkpoint(tmp_path)}",
            *("actor_rollout_ref.model.dtype=bfloat16", ADAPTERS),
        ]
    )
    builder = EmbodiedBuilder(
        config, describe_env(config), ranks=OneProcess(), device=torch.device("cpu")
    )
    builder.load()
    assert filled
    assert set(filled) == {torch.bfloat16}
