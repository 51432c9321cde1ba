"""Demonstrations for a warm start on LIBERO never begin where evaluation does, and the tiny policy
reads whole instructions.
"""

from pathlib import Path

import pytest

from envs.libero.initial_states import STATES, held_out, state_number
from envs.libero.libero_env import LiberoEnv
from envs.libero.suites import STEP_LIMITS, choose_tasks
from siirl.files.weight_files import learnt_tasks
from siirl.models.tiny_backbone import PADDING, hash_words
from siirl.models.tiny_vla import TinyVLAConfig
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config


def test_demonstrations_start_from_states_that_are_not_held_out() -> None:
    first_seed = LiberoEnv(assets="stand_in").spec.expert_seed
    assert first_seed is not None
    states = {
        state_number(seed, count=STATES, states="split")
        for seed in range(first_seed, first_seed + 200)
    }
    assert states == set(range(STATES)) - set(held_out(STATES))


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_configured_policy_reads_the_longest_instruction_to_its_last_word() -> None:
    options = parse_config(["env=libero"]).actor_rollout_ref.model.options
    length = TinyVLAConfig.for_env(
        LiberoEnv(assets="stand_in", image_size=64).spec, **options
    ).instruction_length
    instructions = [task.instruction for task in choose_tasks("+".join(STEP_LIMITS), None)]
    longest = max(instructions, key=lambda sentence: len(sentence.split()))
    ids = hash_words(longest, length=length, buckets=512)
    assert (ids != PADDING).sum() == len(longest.split()) == 19


def test_shipped_weights_of_fewer_words_still_load(repository: Path) -> None:
    from siirl.models import load_policy

    assert load_policy(repository / "assets" / "tiny_vla").config.instruction_length == 16


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_shipped_weights_say_which_tasks_they_were_cloned_on() -> None:
    config = parse_config(["env=libero", "env.assets=stand_in"])
    assert learnt_tasks("assets/tiny_vla_libero") == describe_env(config).tasks


def test_shipped_weights_feel_fingers_that_move_by_a_centimetre(repository: Path) -> None:
    from siirl.models import load_policy

    layer = load_policy(repository / "assets" / "tiny_vla_libero").proprioception[0]
    felt = layer.weight[:, 6:].abs().mean().item() * 0.01  # metres; columns of the two fingers
    assert (
        felt > 0.05
        # without --fit-proprioception 0.002, and the policy could not tell whether it holds
        # something
    )
