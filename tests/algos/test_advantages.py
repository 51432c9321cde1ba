"""Properties of every advantage estimator: equality with the paper's loop, and invariances."""

import pytest
import torch
from estimator_cases import CASES, GROUP_CASES, SHIPPED, advantages_of, columns, numbers_of
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import QUICK, SEEDS, ragged

from siirl.algos.advantages import estimate_advantages
from siirl.errors import TensorError

# The whitenings differ in a number; their loops are compared below, and the unbiased one stands for
# all elsewhere.
DISTINCT = [case for case in CASES if not case.endswith((" biased", " mean", " none"))]
OF_GROUPS = [case for case in GROUP_CASES if case in DISTINCT]
SCALE_FREE = (
    "grpo",
    "cpgd STD_weight",
    "grpo_passk",
    "grpo_passk k=2",
    "reinforce_plus_plus unbiased",
    "reinforce_plus_plus_baseline unbiased",
)
IN_PROPORTION = [case for case in OF_GROUPS if case not in (*SCALE_FREE, "grpo_passk k=3")]

EACH, BY_GROUP = (
    pytest.mark.parametrize("case", DISTINCT),
    pytest.mark.parametrize("case", OF_GROUPS),
)
FEW = settings(QUICK, max_examples=8)


def of(seed, **options):
    return columns(ragged(seed, **options))


def test_every_registered_estimator_has_a_loop():
    assert {case.name for case in CASES.values()} == SHIPPED


@pytest.mark.parametrize("case", CASES)
@QUICK
@given(seed=SEEDS, rows=st.sampled_from([3, 7, 20]), holes=st.booleans())
def test_an_advantage_equals_the_papers_loop(case, seed, rows, holes):
    batch = of(seed, rows=rows, holes=holes)
    expected = torch.tensor(CASES[case].loop(numbers_of(batch)), dtype=torch.float64)
    torch.testing.assert_close(advantages_of(case, batch), expected, rtol=1e-9, atol=1e-9)


@EACH
@FEW
@given(seed=SEEDS)
def test_float32_rewards_lose_no_more_than_their_own_digits(case, seed):
    batch = of(seed)
    single = {
        name: column.float() if column.is_floating_point() else column
        for name, column in batch.items()
    }
    expected = torch.tensor(CASES[case].loop(numbers_of(single)), dtype=torch.float32)
    found = advantages_of(case, single)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@EACH
@FEW
@given(seed=SEEDS)
def test_permuting_rows_permutes_advantages(case, seed):
    batch = of(seed)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    permuted = advantages_of(case, {name: column[order] for name, column in batch.items()})
    torch.testing.assert_close(permuted, advantages_of(case, batch)[order], rtol=1e-9, atol=1e-9)


@EACH
@FEW
@given(seed=SEEDS, left=st.integers(0, 3), right=st.integers(0, 3))
def test_padding_changes_nothing(case, seed, left, right):
    batch = of(seed)
    padded = {
        name: torch.nn.functional.pad(column, (left, right)) if column.ndim == 2 else column
        for name, column in batch.items()
    }
    found = advantages_of(case, padded)
    torch.testing.assert_close(
        found[:, left : left + 9], advantages_of(case, batch), rtol=1e-9, atol=1e-9
    )
    assert found.count_nonzero() == found[:, left : left + 9].count_nonzero()


@BY_GROUP
@FEW
@given(seed=SEEDS)
def test_renaming_groups_changes_nothing(case, seed):
    batch = of(seed)
    renamed = {**batch, "index": torch.tensor([900, -5, 17, 0, 10**12])[batch["index"]]}
    torch.testing.assert_close(
        advantages_of(case, renamed), advantages_of(case, batch), rtol=1e-9, atol=1e-9
    )


@BY_GROUP
@FEW
@given(seed=SEEDS, shift=st.floats(-100, 100))
def test_a_constant_on_all_rewards_changes_nothing(case, seed, shift):
    batch = of(seed)
    moved = {**batch, "token_level_rewards": batch["token_level_rewards"] + shift / 9}
    torch.testing.assert_close(
        advantages_of(case, moved), advantages_of(case, batch), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("case", SCALE_FREE)
@FEW
@given(seed=SEEDS, scale=st.floats(1, 100))
def test_the_scale_of_rewards_changes_nothing(case, seed, scale):
    batch = of(seed)
    scaled = {**batch, "token_level_rewards": batch["token_level_rewards"] * scale}
    torch.testing.assert_close(
        advantages_of(case, scaled, epsilon=0.0),
        advantages_of(case, batch, epsilon=0.0),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("case", IN_PROPORTION)
@FEW
@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_without_a_deviation_advantages_grow_with_rewards(case, seed, scale):
    batch = of(seed)
    scaled = {**batch, "token_level_rewards": batch["token_level_rewards"] * scale}
    torch.testing.assert_close(
        advantages_of(case, scaled), scale * advantages_of(case, batch), rtol=1e-9, atol=1e-9
    )


COLUMNS_LIKE_REWARDS = ("token_level_rewards", "values", "reward_baselines")


@pytest.mark.parametrize(
    "case",
    ["gae none", "gae mean", "reinforce_plus_plus none", "reinforce_plus_plus mean", "remax"],
)
@FEW
@given(seed=SEEDS, scale=st.floats(0.01, 100))
def test_token_advantages_scale_with_rewards_and_values(case, seed, scale):
    batch = of(seed)
    scaled = {
        name: column * scale if name in COLUMNS_LIKE_REWARDS else column
        for name, column in batch.items()
    }
    torch.testing.assert_close(
        advantages_of(case, scaled), scale * advantages_of(case, batch), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("case", ["gae unbiased", "gae biased"])
@FEW
@given(seed=SEEDS, scale=st.floats(1, 100))
def test_the_scale_of_rewards_and_values_changes_no_whitened_advantage(case, seed, scale):
    batch = of(seed)
    scaled = {
        name: column * scale if name in COLUMNS_LIKE_REWARDS else column
        for name, column in batch.items()
    }
    torch.testing.assert_close(
        advantages_of(case, scaled), advantages_of(case, batch), rtol=1e-6, atol=1e-6
    )


def with_more_at_the_last_token(batch, shift):
    """`shift` more reward at the last kept token of each row that has one."""
    mask_BT = batch["response_mask"]
    last_BT = mask_BT & (mask_BT.flip(1).cumsum(1).flip(1) == 1)
    return {**batch, "token_level_rewards": batch["token_level_rewards"] + shift * last_BT.double()}


@FEW
@given(seed=SEEDS, shift=st.floats(-100, 100))
def test_remax_ignores_a_constant_on_a_reward_and_on_its_greedy_baseline(seed, shift):
    batch = of(seed)
    moved = with_more_at_the_last_token(
        {**batch, "reward_baselines": batch["reward_baselines"] + shift}, shift
    )
    torch.testing.assert_close(
        advantages_of("remax", moved), advantages_of("remax", batch), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("case", ["gae unbiased", "reinforce_plus_plus unbiased"])
@FEW
@given(seed=SEEDS, shift=st.floats(-100, 100))
def test_whitened_advantages_without_discount_ignore_a_constant_on_every_reward(case, seed, shift):
    batch = of(seed)
    # each token's return is more by it
    moved = with_more_at_the_last_token({**batch, "values": batch["values"] + shift}, shift)
    found = [advantages_of(case, columns, gamma=1.0) for columns in (moved, batch)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


@BY_GROUP
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rewards_that_are_equal_up_to_rounding_carry_no_advantage(case, dtype):
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.1 * 3, 0.6 - 0.3], dtype=dtype)[:, None]
    batch = {
        "token_level_rewards": rewards,
        "response_mask": torch.ones(4, 1),
        "index": torch.zeros(4).long(),
    }
    assert advantages_of(case, batch, adv_whitening="none").flatten().tolist() == [0.0] * 4


@BY_GROUP
def test_a_group_of_one_carries_no_advantage(case):
    batch = {
        "token_level_rewards": torch.tensor([[0.0], [1.0], [7.0]]),
        "response_mask": torch.ones(3, 1),
        "index": torch.tensor([1, 1, 2]),
    }
    assert advantages_of(case, batch, adv_whitening="none")[2].item() == 0.0


@BY_GROUP
def test_groups_below_the_smallest_spread_carry_no_advantage(case):
    rewards = torch.tensor([[0.30], [0.31], [0.0], [1.0]])
    batch = {
        "token_level_rewards": rewards,
        "response_mask": torch.ones(4, 1),
        "index": torch.tensor([0, 0, 1, 1]),
    }
    found = advantages_of(case, batch, min_group_spread=0.05, adv_whitening="none").flatten()
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[3].item() > 0.4


@EACH
def test_a_batch_without_a_kept_token_has_no_advantage(case):
    batch = {
        **of(0),
        "response_mask": torch.zeros(7, 9),
        "token_level_rewards": torch.zeros(7, 9, dtype=torch.float64),
    }
    assert advantages_of(case, batch).count_nonzero() == 0


@EACH
def test_advantages_carry_no_gradient(case):
    batch = of(0)
    rewards = batch["token_level_rewards"].requires_grad_()
    assert not advantages_of(case, {**batch, "token_level_rewards": rewards}).requires_grad


@EACH
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_reward_that_is_not_finite_is_refused_with_its_row(case, bad):
    batch = of(0)
    batch["token_level_rewards"][2, 1] = bad
    with pytest.raises(TensorError, match=rf"^token_level_rewards is {bad} in row 2, place \[1\]"):
        advantages_of(case, batch)


@EACH
def test_a_mask_of_another_shape_is_refused(case):
    batch = of(0)
    with pytest.raises(
        TensorError, match=r"shape \[7, 8\].*shape \[7, 9\]|shape \[7, 9\].*shape \[7, 8\]"
    ):
        advantages_of(case, {**batch, "response_mask": batch["response_mask"][:, :8]})


@EACH
def test_a_mask_with_another_number_is_refused(case):
    batch = of(0)
    with pytest.raises(TensorError, match=r"response_mask is 0.5 at \[0, 0\]"):
        advantages_of(case, {**batch, "response_mask": batch["response_mask"] * 0.5})


@BY_GROUP
def test_an_index_of_another_length_is_refused(case):
    batch = of(0)
    with pytest.raises(TensorError, match="index has 6 entries and token_level_rewards 7 rows"):
        advantages_of(case, {**batch, "index": batch["index"][:6]})


@BY_GROUP
def test_an_index_that_is_not_a_whole_number_is_refused(case):
    batch = of(0)
    with pytest.raises(TensorError, match=r"index must be integers of shape \[B\]"):
        advantages_of(case, {**batch, "index": batch["index"].double()})


@pytest.mark.parametrize("case", ["gae unbiased", "reinforce_plus_plus unbiased", "remax"])
def test_a_reward_that_the_mask_would_lose_is_refused(case):
    batch = of(0)
    batch["token_level_rewards"][1, 4] = 1.0
    with pytest.raises(TensorError, match="reward at row 1, token 4, where response_mask is 0"):
        advantages_of(case, batch)


@pytest.mark.parametrize(
    ("column", "case"), [("values", "gae unbiased"), ("reward_baselines", "remax")]
)
def test_another_column_that_is_not_finite_is_refused_with_its_row(column, case):
    batch = of(0)
    batch[column][0] = torch.nan
    with pytest.raises(TensorError, match=rf"^{column} is nan in row 0"):
        advantages_of(case, batch)


def test_remax_needs_a_greedy_reward_for_every_row():
    batch = of(0)
    with pytest.raises(
        TensorError, match="reward_baselines has 6 entries and token_level_rewards 7 rows"
    ):
        advantages_of("remax", {**batch, "reward_baselines": batch["reward_baselines"][:6]})


@pytest.mark.parametrize(
    "name",
    ["grpo", "rloo", "gpg", "cpgd", "dr_grpo", "grpo_passk", "opo", "reinforce_plus_plus_baseline"],
)
def test_returns_of_an_outcome_are_its_advantages_and_no_view_of_them(name):
    advantages, returns = estimate_advantages(name=name, available=of(0))
    assert torch.equal(advantages, returns)
    assert advantages.data_ptr() != returns.data_ptr()
