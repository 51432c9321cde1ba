"""Plug-ins by configuration: each key takes module:name and registered names, is checked before
anything starts, and reaches the run.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from siirl.algos.advantages import estimate_advantages
from siirl.algos.policy_losses import LOSS_TRAITS, POLICY_LOSSES, policy_loss
from siirl.dag_worker.registries import REGISTRIES, load_plug_ins
from siirl.errors import ConfigError, UnknownNameError
from siirl.params.parser import known_keys, parse_config
from siirl.preflight.configured_graph import load_graph
from siirl.reporting.jsonl import read_rows

OWN_NAMES = """
import torch
from envs.gymnasium import GymnasiumEnv
from envs.registry import register_env
from siirl.algos import PolicyLoss, register_adv_est, register_policy_loss
from siirl.algos.aggregation import AGGREGATIONS, register_aggregation
from siirl.algos.filters import register_filter, register_filter_metric
from siirl.algos.kl import register_kl_estimator
from siirl.reporting.metric_writers import register_writer
from siirl.engine.training.schedules import register_schedule

@register_env("own_cartpole")
class OwnCartPole(GymnasiumEnv):
    pass

@register_adv_est("own_advantage")
def advantage(token_level_rewards, response_mask, **kwargs):
    advantages = (token_level_rewards.sum(-1, keepdim=True) - 10.0) * response_mask
    return advantages, advantages

@register_policy_loss("own_loss", aggregation="seq-mean-token-mean", own_bounds=True)
def loss(*, log_probs_BT, advantages_BT):
    return PolicyLoss(loss_BT=-advantages_BT * log_probs_BT, metrics_BT={"own": torch.tensor(3.0)})

@register_kl_estimator("own_kl")
def kl(log_ratio_BT):
    return log_ratio_BT.square() + 7.0

@register_schedule("own_schedule")
def schedule(progress):
    return 0.5

@register_filter_metric("own_metric")
def metric(batch):
    return batch["env_return"].float()

@register_filter("own_filter")
def keep(group_B, values_B, length_B):
    return torch.ones_like(group_B, dtype=torch.bool)

@register_writer("own_writer")
class Writer:
    def __init__(self, run):
        self.file = run.folder / "own.txt"
    def write(self, *, step, metrics):
        self.file.open("a").write(f"{step} {metrics['actor/own']}\\n")
    def close(self):
        pass

aggregation = AGGREGATIONS["token-mean"]
register_aggregation("own_aggregation")(aggregation)

def documents_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None, rollout_is_weights=None):
    zero = torch.zeros(())
    return -(log_prob * advantages * response_mask).sum() / response_mask.sum(), zero, zero, zero

def wants_more(something_else):
    return something_else

not_callable = 3
in_c = torch.Tensor  # Python cannot read its signature
"""
OWN = {  # key: registered name, name in the module
    "algorithm.adv_estimator": ("own_advantage", "advantage"),
    "algorithm.kl_penalty": ("own_kl", "kl"),
    "algorithm.filter.name": ("own_filter", "keep"),
    "algorithm.filter.metric": ("own_metric", "metric"),
    "actor_rollout_ref.actor.loss": ("own_loss", "loss"),
    "actor_rollout_ref.actor.loss_agg_mode": ("own_aggregation", "aggregation"),
    "actor_rollout_ref.actor.kl_loss_type": ("own_kl", "kl"),
    "actor_rollout_ref.actor.optim.scheduler": ("own_schedule", "schedule"),
    "critic.optim.scheduler": ("own_schedule", "schedule"),
    "trainer.logger": ("own_writer", "Writer"),
}
SMALL = (
    "pipeline=dapo", "env=gymnasium", "env.id=CartPole-v1", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "env.num_servers=1", "env.envs_per_server=6", "env.max_episode_steps=40",
    "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null", "trainer.total_steps=2", "trainer.save_freq=-1",
    "actor_rollout_ref.model.options={chunk_length: 4, width: 16}", "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.optim.warmup_steps=0", "actor_rollout_ref.actor.optim.lr=1e-2",
)  # fmt: skip


@pytest.fixture
def own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module `own_names`, whose import is forgotten afterwards."""
    (tmp_path / "own_names.py").write_text(OWN_NAMES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_names", None)


def load(*words: str) -> None:
    config = parse_config([*SMALL, *words])
    load_plug_ins(config, load_graph(config))


CALLABLES = """
import functools
import sys

class Advantage:
    def __call__(self, token_level_rewards, response_mask, scale=2.0):
        advantages = scale * token_level_rewards.sum(-1, keepdim=True) * response_mask
        return advantages, advantages

as_object = Advantage()
as_partial = functools.partial(as_object, scale=3.0)

def nothing(token_level_rewards):
    return None

def one_tensor(old_log_prob, log_prob, advantages, response_mask):
    return (-advantages * log_prob * response_mask).sum()
"""


@pytest.fixture
def callables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules `own_callables`, and `own_exit`, which ends the process that imports it."""
    (tmp_path / "own_callables.py").write_text(CALLABLES)
    (tmp_path / "own_exit.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_callables", None)


@pytest.mark.parametrize(("name", "expected"), [("as_object", 2.0), ("as_partial", 3.0)])
def test_an_object_that_can_be_called_is_a_plug_in(
    callables: None, name: str, expected: float
) -> None:
    reference = f"own_callables:{name}"
    for _ in range(2):  # as a second job in the same process does
        load(f"algorithm.adv_estimator={reference}")
    ones_11 = torch.ones(1, 1)
    available = {"token_level_rewards": ones_11, "response_mask": ones_11}
    advantages_11, _ = estimate_advantages(name=reference, available=available)
    assert advantages_11.item() == expected


def test_a_plug_in_with_a_wrong_return_type_is_named(callables: None) -> None:
    load(
        "algorithm.adv_estimator=own_callables:nothing",
        "actor_rollout_ref.actor.loss=own_callables:one_tensor",
    )
    ones_11 = torch.ones(1, 1)
    with pytest.raises(
        ConfigError,
        match=r"'own_callables:nothing' must return \(advantages, returns\), and returned a NoneType",
    ):
        estimate_advantages(
            name="own_callables:nothing",
            available={"token_level_rewards": ones_11, "response_mask": ones_11},
        )
    columns = dict.fromkeys(("log_probs_BT", "old_log_probs_BT", "advantages_BT"), ones_11) | {
        "mask_BT": ones_11 == 1
    }
    with pytest.raises(
        ConfigError,
        match=r"one_tensor must return \(pg_loss, pg_clipfrac, .*, and returned a Tensor",
    ):
        policy_loss(
            name="own_callables:one_tensor",
            available={**columns, "loss_agg_mode": "token-mean", "config": None},
        )


def test_a_module_that_ends_the_process_is_refused_with_the_key(callables: None) -> None:
    with pytest.raises(
        ConfigError,
        match=r"algorithm.adv_estimator=own_exit:x: importing 'own_exit' raised SystemExit: 3",
    ):
        load("algorithm.adv_estimator=own_exit:x")


def test_every_key_that_takes_plug_ins_has_a_registry_and_its_choices_are_in_it() -> None:
    keys = {place: key for place, key in known_keys({}).items() if key.metadata["plug_in"]}
    assert keys.keys() == REGISTRIES.keys() == OWN.keys()
    for place, key in keys.items():
        assert {name.removesuffix("+") for name in key.metadata["choices"]} <= REGISTRIES[
            place
        ].known.keys()


@pytest.mark.parametrize("place", OWN)
def test_a_registered_name_is_found_only_if_its_module_is_configured(
    own_names: Path, place: str
) -> None:
    name, _ = OWN[place]
    with pytest.raises(UnknownNameError, match=f"Unknown {place} '{name}'"):
        load(f"{place}={name}")
    load(f"{place}={name}", "user_modules=[own_names]")


@pytest.mark.parametrize("place", OWN)
def test_a_reference_is_registered_under_its_own_text(own_names: Path, place: str) -> None:
    load(f"{place}=own_names:{OWN[place][1]}")
    assert f"own_names:{OWN[place][1]}" in REGISTRIES[place].known


@pytest.mark.parametrize("place", OWN)
@pytest.mark.parametrize("wrong", ["wants_more", "not_callable", "in_c", "no_such_name"])
def test_a_wrong_plug_in_is_refused_before_a_process_starts(
    own_names: Path, place: str, wrong: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{place}=own_names:{wrong}")
    assert str(caught.value).startswith(f"{place}=own_names:{wrong}: ")


def test_a_users_straight_through_estimator_is_known(own_names: Path) -> None:
    load("actor_rollout_ref.actor.kl_loss_type=own_kl+", "user_modules=[own_names]")


def test_a_registered_loss_keeps_its_aggregation_and_bounds_as_a_reference(own_names: Path) -> None:
    load("actor_rollout_ref.actor.loss=own_names:loss")
    reference = "own_names:loss"
    assert POLICY_LOSSES[reference] is POLICY_LOSSES["own_loss"]
    traits = LOSS_TRAITS[reference]
    assert (traits.aggregation, traits.own_bounds) == ("seq-mean-token-mean", True)


def test_a_loss_of_the_documents_form_is_known_by_its_arguments(own_names: Path) -> None:
    load("actor_rollout_ref.actor.loss=own_names:documents_loss")
    ones = torch.ones(1, 2)
    available = {
        "log_probs_BT": ones,
        "old_log_probs_BT": ones,
        "advantages_BT": ones,
        "mask_BT": ones,
    }
    result = POLICY_LOSSES["own_names:documents_loss"](
        **available, loss_agg_mode="token-mean", config=None
    )
    assert result.loss_BT.tolist() == [[-1.0, -1.0]]


def test_a_rule_that_needs_rewards_is_refused_where_the_filter_comes_before_them(
    own_names: Path,
) -> None:
    own = ("pipeline=embodied_srpo", "env=metaworld", "algorithm.filter.name=own_names:keep")
    config = parse_config(list(own))
    with pytest.raises(
        ConfigError,
        match="Argument 'values_B' of filter of pipeline=embodied_srpo keep is not provided",
    ):
        load_plug_ins(config, load_graph(config))


def command(folder: Path, *words: str) -> list[dict]:
    """The rows of metrics.jsonl of `python -m siirl.train`, typed in `folder`."""
    words = (sys.executable, "-m", "siirl.train", *SMALL, *words)
    done = subprocess.run(
        words, cwd=folder, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = (folder / "outputs" / "dapo").iterdir()
    assert (run / "own.txt").read_text() == "1 3.0\n2 3.0\n"
    (warning,) = [
        line
        for line in (run / "warnings.txt").read_text().splitlines()
        if "is not declared" in line
    ]
    assert (
        warning.startswith("Metric 'actor/own' is not declared")
        and f"Warning: {warning}" in done.stdout + done.stderr
    )
    return list(read_rows(run / "metrics.jsonl"))


def assert_everything_of_the_users_own_acted(rows: list[dict]) -> None:
    assert [row["actor/lr"] for row in rows] == [5e-3, 5e-3]  # half of it, at every step
    assert [row["sampling/rounds"] for row in rows] == [1.0, 1.0]
    assert all(row["actor/kl_loss"] >= 7.0 for row in rows)
    assert all(row["actor/updates"] == 1.0 for row in rows)


def assigned(position: int) -> list[str]:
    """Each key that pipeline=dapo reads with its registered name (0) or reference (1)."""
    read = {
        place: names[position]
        for place, names in OWN.items()
        if "critic" not in place and place != "algorithm.kl_penalty"
    }
    return [f"{place}={'own_names:' if position else ''}{name}" for place, name in read.items()]


@pytest.mark.odd_metrics
def test_every_key_that_takes_a_plug_in_runs_with_one(own_names: Path) -> None:
    rows = command(own_names, "cluster=local", "actor_rollout_ref.actor.ppo_epochs=1", *assigned(1))
    assert_everything_of_the_users_own_acted(rows)


@pytest.mark.slow
def test_a_run_on_ray_finds_the_names_of_a_user_module_in_every_process(own_names: Path) -> None:
    own = ("user_modules=[own_names]", "env.name=own_cartpole", "env.kwargs={name: own_cartpole}")
    rows = command(
        own_names, "cluster=ray", "actor_rollout_ref.actor.ppo_epochs=1", *own[:2], *assigned(0)
    )
    assert_everything_of_the_users_own_acted(rows)
