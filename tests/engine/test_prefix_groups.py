"""Rows that share a prompt: grouped without loss, in the cheapest size, scored as if alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tiny_text import PAD, VOCABULARY, score_plainly, tiny_model
from tiny_training import largest_difference, make_engine

from siirl.engine.actor.packing import PADDING_OWNER, pack_rows, prompt_groups
from siirl.engine.actor.prefix_groups import PrefixGroup, prefix_groups, rows_at_once
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.critic.value_model import ValueModel
from siirl.engine.critic.value_scorers import text_value_scorer, without_head
from siirl.engine.training.batch_cuts import micro_batch_rows
from siirl.engine.training.batch_loss import LossSum

WIDTH = 16  # of the tiny model
PROMPTS = (4, 4, 4, 2, 2, 3, 4, 2)
"""Prompt length of each row.

Rows of one length have one prompt, except the seventh, whose prompt differs.
"""
RESPONSES = (3, 1, 5, 0, 2, 4, 2, 3)


def group_rows(*, seed: int = 0) -> TensorDict:
    """Unordered answers to four prompts.

    Three answer one, three another (one of them empty), and two are single.
    """
    generator = torch.Generator().manual_seed(seed)
    width_P, width_T = max(PROMPTS), max(RESPONSES)
    ids_BS = torch.full((len(PROMPTS), width_P + width_T), PAD)
    mask_BS = torch.zeros_like(ids_BS)
    shared = {
        length: torch.randint(2, VOCABULARY, (length,), generator=generator)
        for length in sorted(set(PROMPTS))
    }
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        ids_BS[row, width_P - prompt : width_P] = (
            shared[prompt] if row != 6 else shared[prompt].flip(0)
        )
        ids_BS[row, width_P : width_P + response] = torch.randint(
            2, VOCABULARY, (response,), generator=generator
        )
        mask_BS[row, width_P - prompt : width_P + response] = 1
    response_mask_BT = mask_BS[:, width_P:].clone()
    response_mask_BT[2, 1] = 0  # from a tool, in the middle of an answer
    columns = {
        "input_ids": ids_BS,
        "attention_mask": mask_BS,
        "responses": ids_BS[:, width_P:],
        "response_mask": response_mask_BT,
    }
    return TensorDict(columns, batch_size=[len(PROMPTS)])


def sharing_model(kind="tied"):
    model = tiny_model(kind)
    model.shares_prompts = True
    return model


def groups_of(prompts, lengths, *, width=WIDTH, most_tokens=None):
    """`prefix_groups` of prompts given as strings."""
    longest = max(map(len, prompts))
    prompts_BP = torch.tensor(
        [
            [PADDING_OWNER] * (longest - len(prompt)) + [ord(letter) for letter in prompt]
            for prompt in prompts
        ]
    )
    return prefix_groups(
        prompts_BP,
        torch.tensor(lengths),
        torch.tensor([len(prompt) for prompt in prompts]),
        width=width,
        most_tokens=most_tokens,
    )


# Groups


def test_rows_of_one_prompt_are_together_wherever_they_stand():
    found = groups_of(["abc", "xy", "abc", "xyz", "abc"], [5, 3, 4, 4, 3])
    assert found == [
        PrefixGroup(rows=(0, 2, 4), prefix=3, suffixes=(2, 1, 0)),
        PrefixGroup(rows=(1,), prefix=0, suffixes=(3,)),
        PrefixGroup(rows=(3,), prefix=0, suffixes=(4,)),
    ]
    assert [group.tokens for group in found] == [3 + 2 + 1, 3, 4]


def test_a_prompt_group_stays_within_the_budget_if_each_row_does():
    # Four tokens of prompt and three of each answer: two answers make ten tokens, three thirteen.
    found = groups_of(["abcd"] * 5, [7] * 5, most_tokens=12)
    assert [group.rows for group in found] == [(0,), (1, 2), (3, 4)]
    assert [group.rows for group in groups_of(["abcd"] * 2, [7] * 2, most_tokens=8)] == [(0,), (1,)]


@given(
    prompts=st.lists(
        st.sampled_from(["a", "b", "abc", "abd", "longer prompt"]), min_size=1, max_size=30
    ),
    suffix=st.integers(0, 40),
    budget=st.one_of(st.none(), st.integers(60, 200)),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_every_row_is_in_one_group_of_its_own_prompt(prompts, suffix, budget):
    groups = groups_of(prompts, [len(prompt) + suffix for prompt in prompts], most_tokens=budget)
    assert sorted(row for group in groups for row in group.rows) == list(range(len(prompts)))
    for group in groups:
        assert len({prompts[row] for row in group.rows}) == 1
        assert budget is None or group.tokens <= budget
        assert group.prefix == (len(prompts[group.rows[0]]) if len(group.rows) > 1 else 0)


@given(
    prefix=st.integers(1, 3000),
    suffix=st.integers(1, 3000),
    width=st.sampled_from([64, 128, 1024, 4096]),
    rows=st.integers(1, 64),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_the_number_of_rows_behind_a_prompt_minimises_the_cost(prefix, suffix, width, rows):
    def cost(together):
        tokens = prefix + together * suffix
        return tokens * (24 * width**2 + 4 * tokens * width) / together

    chosen = rows_at_once(prefix=prefix, suffixes=[suffix] * rows, width=width, most_tokens=None)
    assert 1 <= chosen <= rows
    # The formula gives a real number of rows; a neighbouring integer may be slightly better.
    assert cost(chosen) <= 1.03 * min(cost(together) for together in range(1, rows + 1))


def test_whole_groups_of_short_answers_share_and_long_answers_do_not():
    assert rows_at_once(prefix=12, suffixes=[4] * 16, width=128, most_tokens=None) == 16
    assert rows_at_once(prefix=100, suffixes=[4000] * 16, width=4096, most_tokens=None) == 1


# Lanes


def test_a_shared_prompt_is_computed_once():
    batch = group_rows()
    apart, shared = (pack_rows(batch, width=WIDTH, share_prompts=share) for share in (False, True))
    # Up to the token before the last scored one: 6, 4, 8, nothing, 3, 6, 5, 4; shared: 4 + 2 + 0 +
    # 4, and 2 + 1 + 2.
    assert int((apart.input_ids_LS != PAD).sum()) == 6 + 4 + 8 + 3 + 6 + 5 + 4
    assert int((shared.input_ids_LS != PAD).sum()) == 10 + 5 + 6 + 5
    assert apart.sees is None


def test_a_token_attends_to_the_prompt_and_its_own_answer_up_to_itself():
    batch = group_rows()[[0, 2]]
    packed = pack_rows(batch, width=WIDTH, share_prompts=True)
    prompt, first, second = range(4), range(4, 6), range(6, 10)
    expected = torch.zeros(10, 10, dtype=torch.bool)
    for part, before in ((prompt, ()), (first, prompt), (second, prompt)):
        for place in part:
            expected[place, [*before, *range(part[0], place + 1)]] = True
    assert torch.equal(packed.sees.dense_L1SS()[0, 0], expected)
    assert packed.position_ids_LS[0].tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]


# Scores


@pytest.mark.parametrize("kind", ["tied", "separate", "biased head"])
def test_scores_are_those_of_each_row_alone(kind):
    model, batch = sharing_model(kind), group_rows()
    found = text_scorer(model, batch, 0.7)
    log_probs_BT, entropy_BT = score_plainly(model, batch, 0.7)
    torch.testing.assert_close(found.log_probs_BT, log_probs_BT, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropy_BT, entropy_BT, rtol=0, atol=1e-5)


def gradient(model, scores, weights_BT):
    model.zero_grad()
    (scores * weights_BT).sum().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("kind", ["tied", "separate"])
def test_the_gradient_is_that_of_rows_alone(kind):
    model, batch = sharing_model(kind), group_rows()
    weights_BT = torch.randn(batch["responses"].shape, generator=torch.Generator().manual_seed(1))
    found = gradient(model, text_scorer(model, batch, 0.7).log_probs_BT, weights_BT)
    expected = gradient(model, score_plainly(model, batch, 0.7)[0], weights_BT)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


def test_an_answer_does_not_attend_to_its_neighbour():
    model, batch = sharing_model(), group_rows()
    before = text_scorer(model, batch, 1.0).log_probs_BT.detach()
    other = batch.clone()
    other["input_ids"][0, max(PROMPTS)] = other["responses"][0, 0] = 39
    after = text_scorer(model, other, 1.0).log_probs_BT.detach()
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-6)
    assert float((after - before)[0].abs().max()) > 1e-3


@torch.no_grad()
def test_values_are_those_of_each_row_alone():
    trunk = without_head(sharing_model())
    model = ValueModel(trunk=trunk, feature_size=WIDTH, normalize_returns=True)
    torch.nn.init.normal_(model.value_head.weight, generator=torch.Generator().manual_seed(0))
    batch = group_rows()
    together = text_value_scorer(model, batch, 1.0)
    alone = torch.cat(
        [text_value_scorer(model, batch[row : row + 1], 1.0) for row in range(len(batch))]
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert float(together.abs().max()) > 0.1


# Micro-batches


def shared_prompts(rows, budget):
    return prompt_groups(rows, budget, width=WIDTH)


def test_a_budget_counts_a_shared_prompt_once_and_keeps_its_rows_together():
    batch = group_rows()
    parts = micro_batch_rows(batch, rows=1, tokens=16, prefix_groups=shared_prompts)
    assert sorted(row for part in parts for row in part) == list(range(8))
    assert len(parts) == 2  # 26 tokens; 41 if each prompt counts again
    assert len(micro_batch_rows(batch, rows=1, tokens=16)) > 2
    for together in ({0, 1, 2}, {4, 7}):
        assert any(together <= set(part) for part in parts)


@pytest.mark.parametrize("budget", [10, 16, 1000])
def test_an_update_is_the_same_with_prompts_shared_and_apart(budget):
    def loss(scores, rows):
        return LossSum(loss=(scores.log_probs_BT * (1 + rows["input_ids"][:, -1:])).sum(), sums={})

    def gradients(model, **options):
        engine = make_engine(module=model, scorer=text_scorer, **options)
        engine.accumulate_gradient(group_rows(), loss, lambda rows: rows["response_mask"].sum())
        return {name: weight.grad for name, weight in model.named_parameters()}

    apart = gradients(tiny_model(), micro_batch_size=1)
    shared = gradients(sharing_model(), micro_batch_tokens=budget, prefix_groups=shared_prompts)
    assert max(float(gradient.abs().max()) for gradient in apart.values()) > 1e-3
    assert largest_difference(apart, shared) < 1e-5
