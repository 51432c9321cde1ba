"""The scorer of embodied policies: executed chunks only, log-probs at their tokens."""

import pytest
import torch
from tiny_training import BINS, CHUNKS, TOKENS, TinyPolicy, trajectories

from siirl.algos.distributions import Categorical
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.errors import TensorError


class CountingPolicy(TinyPolicy):
    """Records the number of observations of each forward pass."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def forward(self, **observations):
        self.rows.append(len(observations["instruction_ids"]))
        return super().forward(**observations)


def by_hand(policy, batch, row, token, temperature):
    """Log-prob of one token, from a separate forward pass."""
    chunk, place = divmod(token, TOKENS)
    logits = policy(
        pixel_values=batch["pixel_values"][row : row + 1, chunk],
        proprioception=batch["proprioception"][row : row + 1, chunk],
        instruction_ids=batch["instruction_ids"][row : row + 1],
    ).logits
    return torch.log_softmax(logits[0, place] / temperature, dim=-1)[batch["responses"][row, token]]


def test_every_executed_token_has_the_log_prob_of_its_own_chunk():
    policy, batch = TinyPolicy(), trajectories(5, masked_rows=(3,))
    scores = embodied_scorer(policy, batch, 1.3)
    for row, token in batch["response_mask"].nonzero().tolist():
        torch.testing.assert_close(
            scores.log_probs_BT[row, token], by_hand(policy, batch, row, token, 1.3)
        )


def test_a_chunk_with_an_instruction_of_its_own_is_scored_under_it():
    policy, batch = TinyPolicy(), trajectories(3)
    own = batch.clone()
    own["chunk_instruction_ids"] = batch["instruction_ids"][:, None].repeat(1, CHUNKS, 1)
    assert torch.equal(
        embodied_scorer(policy, own, 1.0).log_probs_BT,
        embodied_scorer(policy, batch, 1.0).log_probs_BT,
    )
    own["chunk_instruction_ids"][1, 0] = other = torch.tensor([6, 6, 6])
    alone = batch.clone()
    alone["instruction_ids"][1] = other
    found, before, expected = (
        embodied_scorer(policy, rows, 1.0).log_probs_BT[1] for rows in (own, batch, alone)
    )
    torch.testing.assert_close(found[:TOKENS], expected[:TOKENS])
    torch.testing.assert_close(found[TOKENS:], before[TOKENS:])
    assert not torch.allclose(found[:TOKENS], before[:TOKENS])


def test_rows_whose_chunks_were_all_executed_score_as_beside_a_shorter_row():
    policy, batch = TinyPolicy(), trajectories(4)
    batch["response_mask"][:] = 1
    beside = batch.clone()
    beside["response_mask"][3, TOKENS:] = 0
    gradients = []
    for rows in (batch, beside):
        policy.zero_grad()
        scores = embodied_scorer(policy, rows, 1.0)
        (scores.log_probs_BT[:3] + scores.entropy_BT[:3]).sum().backward()
        gradients.append([weight.grad.clone() for weight in policy.parameters()])
        found = scores.log_probs_BT[:3].detach(), scores.entropy_BT[:3].detach()
        for token in (0, TOKENS, CHUNKS * TOKENS - 1):
            torch.testing.assert_close(found[0][1, token], by_hand(policy, rows, 1, token, 1.0))
    for of_all, of_some in zip(*gradients, strict=True):
        torch.testing.assert_close(of_all, of_some)


def test_a_policy_that_changes_its_inputs_in_place_does_not_change_the_batch():
    class Clipping(TinyPolicy):
        def forward(self, *, proprioception, **others):
            return super().forward(proprioception=proprioception.clamp_(-0.1, 0.1), **others)

    batch = trajectories(3)
    batch["response_mask"][:] = 1
    before = batch["proprioception"].clone()
    embodied_scorer(Clipping(), batch, 1.0)
    assert torch.equal(batch["proprioception"], before)


def test_tokens_that_were_not_executed_have_no_log_probs():
    batch = trajectories(5)
    scores = embodied_scorer(TinyPolicy(), batch, 1.0)
    masked = batch["response_mask"] == 0
    assert not scores.log_probs_BT[masked].any()
    assert not scores.entropy_BT[masked].any()


def test_only_chunks_with_an_executed_token_go_through_the_policy():
    policy, batch = CountingPolicy(), trajectories(5, masked_rows=(1,))
    embodied_scorer(policy, batch, 1.0)
    lengths = batch["response_mask"].sum(-1)
    assert policy.rows == [int((lengths / TOKENS).ceil().sum())]


def test_padding_contents_do_not_change_scores():
    policy, batch = TinyPolicy(), trajectories(3)
    junk = batch.clone()
    padding = (batch["response_mask"] == 0).unflatten(1, (CHUNKS, TOKENS)).all(-1)
    junk["proprioception"][padding] = torch.nan
    junk["responses"][batch["response_mask"] == 0] = BINS - 1
    torch.testing.assert_close(
        embodied_scorer(policy, junk, 1.0).log_probs_BT,
        embodied_scorer(policy, batch, 1.0).log_probs_BT,
    )


def test_rows_without_any_executed_token_still_run_the_policy_with_a_gradient_of_zero():
    policy = CountingPolicy()
    embodied_scorer(policy, trajectories(2, masked_rows=(0, 1)), 1.0).log_probs_BT.sum().backward()
    assert policy.rows == [1]
    assert all(float(weight.grad.abs().sum()) == 0.0 for weight in policy.parameters())


def test_a_policy_without_a_camera_gets_no_images():
    seen = {}

    class Blind(torch.nn.Module):
        def forward(self, **observations):
            seen.update(observations)
            return Categorical(torch.zeros(len(observations["instruction_ids"]), TOKENS, BINS))

    with torch.no_grad():
        embodied_scorer(Blind(), trajectories(2).exclude("pixel_values"), 1.0)
    assert seen["pixel_values"] is None
    assert seen["proprioception"].ndim == 2


def test_a_policy_of_another_chunk_length_is_refused():
    class Short(torch.nn.Module):
        def forward(self, **observations):
            return Categorical(torch.zeros(len(observations["instruction_ids"]), TOKENS - 1, BINS))

    with pytest.raises(TensorError, match=r"distribution has .* another chunk length"):
        embodied_scorer(Short(), trajectories(2), 1.0)


def test_a_batch_without_observations_is_refused():
    with pytest.raises(
        TensorError,
        match="needs pixel_values or proprioception; this one has: instruction_ids, responses",
    ):
        embodied_scorer(
            TinyPolicy(), trajectories(2).exclude("pixel_values", "proprioception"), 1.0
        )
