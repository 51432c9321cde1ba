"""Scripts without a graph train on several processes: with one controller, and as one program."""

import re
import subprocess
import sys

import own_single_controller
import pytest
import torch

from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.workflow import RolloutResult
from siirl.engine.training.weight_sync import checksum, receive_weights
from siirl.errors import InvariantError
from siirl.user_interface.single_turn import single_turn


def printed(*words: str) -> list[str]:
    """Lines that a command prints about its steps."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("step ")]


def test_one_program_on_two_ranks_trains_the_weights_that_act_on_both():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    steps = printed(*launcher, "-m", "own_spmd_training", "2")
    assert len(steps) == 2
    gaps = [float(line.rsplit(" ", 1)[1]) for line in steps]
    assert max(gaps) < 1e-4  # the acting copy had the trained weights, also after an update


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_single_controller_trains_on_answers_one_version_behind(size):
    module = own_single_controller.__name__
    steps = printed("-c", f"from {module} import main; main(steps=3, size={size})")
    assert [re.search(r"by version (\d+)", line)[1] for line in steps] == ["0", "0", "1"]


def test_a_script_that_scores_answers_itself_gets_rows_for_training():
    request = GenerationRequest("q-0", (5, 6, 7), max_new_tokens=4, seed=(1,))
    response = GenerationResponse(
        tokens=torch.tensor([8, 9]).numpy(),
        log_probs=torch.tensor([-0.5, -1.5]).numpy(),
        versions=torch.tensor([3, 4]).numpy(),
        finish_reason="length",
    )
    trajectory = single_turn(request, response, group_id=2, reward=1.0)
    batch = RolloutResult(trajectories=[trajectory]).batch()
    assert batch["responses"].tolist() == [[8, 9]]
    assert batch["env_return"].tolist() == [1.0]
    assert batch["policy_version"].tolist() == [3]  # of the oldest weights
    assert batch["truncated"].tolist() == [True]


def test_weights_that_arrive_with_other_bits_are_refused():
    sent = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    module = torch.nn.Linear(3, 2)
    receive_weights(module, sent, sent=checksum(sent))
    assert module.weight.tolist() == [[1.0] * 3] * 2
    with pytest.raises(InvariantError, match="arrived with"):
        receive_weights(module, {**sent, "bias": torch.ones(2)}, sent=checksum(sent))
