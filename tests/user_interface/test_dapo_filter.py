"""Dynamic sampling: groups that stay, the number of requested prompts, and steps that continue
with fewer groups.
"""

# B trajectory

from types import SimpleNamespace

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from siirl.algos.filters import FILTERS
from siirl.engine.training.collectives import OneProcess
from siirl.params.parser import parse_config
from siirl.user_interface.filter_interface.dapo import dynamic_sampling, prompts_to_draw


def batch(rewards_by_group, *, penalties=None, truncated=()):
    """Two tokens per trajectory; the score is at the second, penalties are in the reward alone."""
    rows = [(group, reward) for group, rewards in rewards_by_group.items() for reward in rewards]
    scores_BT = torch.tensor([[0.0, reward] for _, reward in rows]).reshape(-1, 2)
    penalties_BT = (
        torch.zeros_like(scores_BT)
        if penalties is None
        else torch.tensor([[0.0, penalty] for penalty in penalties])
    )
    return TensorDict(
        {
            "uid": NonTensorStack(*[f"{group}-{row}" for row, (group, _) in enumerate(rows)]),
            "index": torch.tensor([group for group, _ in rows], dtype=torch.long),
            "complete": torch.tensor([reward > 0 for _, reward in rows], dtype=torch.bool),
            "truncated": torch.tensor(
                [row in truncated for row in range(len(rows))], dtype=torch.bool
            ),
            "token_level_scores": scores_BT,
            "token_level_rewards": scores_BT + penalties_BT,
        },
        batch_size=[len(rows)],
    )


def sample(rows, *overrides, wanted=2, round=0, drawn=2, ranks=None):
    config = parse_config(["pipeline=dapo", f"data.train_batch_size={wanted}", *overrides])
    return dynamic_sampling(
        batch=rows,
        context=SimpleNamespace(
            config=config, ranks=ranks or OneProcess(), round=round, drawn_prompts=drawn
        ),
    )


def groups(output):
    return sorted(set(output.batch["index"].tolist()))


def test_groups_whose_rewards_are_all_alike_are_dropped():
    output = sample(batch({0: [1.0, 0.0], 1: [1.0, 1.0], 2: [0.0, 0.0], 3: [0.0, 1.0]}))
    assert (groups(output), output.more_prompts) == ([0, 3], 0)
    assert output.metrics["sampling/dropped_without_signal"] == 4.0
    assert (
        output.metrics["sampling/kept"],
        output.metrics["sampling/groups"],
        output.metrics["sampling/rounds"],
    ) == (4.0, 2.0, 1.0)


def test_a_full_step_requests_no_prompts():
    assert sample(batch({0: [1.0, 0.0], 1: [1.0, 0.0]})).more_prompts == 0


def test_too_few_groups_request_more_prompts_and_keep_their_rows():
    output = sample(
        batch({0: [1.0, 0.0], 1: [1.0, 1.0], 2: [0.0, 0.0], 3: [1.0, 1.0]}), wanted=4, drawn=4
    )
    assert (groups(output), output.more_prompts) == (
        [0],
        4,
    )  # three are missing, and one of four was kept: 12, but no more than a step
    # kept rows are counted when the step is full
    assert output.metrics == {"sampling/dropped_without_signal": 6.0}


def test_after_the_last_refill_the_step_continues_with_fewer_groups():
    output = sample(
        batch({0: [1.0, 0.0], 1: [1.0, 1.0]}), "algorithm.filter.max_refills=3", round=3
    )
    assert (groups(output), output.more_prompts) == ([0], 0)
    assert (output.metrics["sampling/missing_groups"], output.metrics["sampling/rounds"]) == (
        1.0,
        4.0,
    )


def test_refills_can_be_turned_off():
    assert sample(batch({0: [1.0, 1.0]}), "algorithm.filter.max_refills=0").more_prompts == 0


def test_every_group_may_be_dropped():
    output = sample(batch({0: [1.0, 1.0], 1: [0.0, 0.0]}), "algorithm.filter.max_refills=0")
    assert (
        len(output.batch),
        output.metrics["sampling/groups"],
        output.metrics["sampling/missing_groups"],
    ) == (0, 0.0, 2.0)
    assert "token_level_rewards" in output.batch.keys()


def test_groups_beyond_the_step_are_dropped_the_latest_first():
    output = sample(batch({7: [1.0, 0.0], 3: [1.0, 0.0], 5: [0.0, 1.0]}))
    assert groups(output) == [3, 5]
    assert output.metrics["sampling/dropped_surplus"] == 2.0


def test_a_length_penalty_does_not_make_a_solved_group_useful():
    rows = batch({0: [1.0, 1.0]}, penalties=[0.0, -0.5])
    nothing_more = "algorithm.filter.max_refills=0"
    assert groups(sample(rows, nothing_more)) == []
    assert groups(sample(rows, nothing_more, "algorithm.filter.metric=reward")) == [0]


def test_groups_may_be_filtered_by_success():
    rows = batch({0: [0.2, 0.7], 1: [0.0, 0.7]})
    assert groups(
        sample(rows, "algorithm.filter.max_refills=0", "algorithm.filter.metric=success")
    ) == [1]


def test_a_band_of_success_narrows_it():
    rows = batch({0: [1.0, 0.0, 0.0, 0.0], 1: [1.0, 1.0, 0.0, 0.0]})
    assert groups(
        sample(rows, "algorithm.filter.max_refills=0", "algorithm.filter.success_low=0.5")
    ) == [1]


def test_truncated_rows_can_be_left_out_and_their_group_is_judged_without_them():
    rows = batch({0: [1.0, 1.0, 0.0]}, truncated=(2,))
    assert groups(sample(rows, "algorithm.filter.max_refills=0")) == [0]
    assert (
        groups(
            sample(rows, "algorithm.filter.max_refills=0", "algorithm.filter.drop_truncated=true")
        )
        == []
    )


def test_filtering_kept_groups_again_keeps_them():
    kept = sample(batch({0: [1.0, 0.0], 1: [1.0, 1.0]})).batch
    assert groups(sample(kept, "algorithm.filter.max_refills=0")) == [0]


class OtherRank(OneProcess):
    """Another rank rolled out group 1, whose rewards are all alike here and not there; it comes
    second.
    """

    size = 2
    others = batch({1: [0.0, 0.0], 2: [1.0, 0.0]})

    def __init__(self):
        names = iter(("index", "token_level_scores", "complete", "truncated"))
        self.names = names

    def gather_rows(self, rows):
        other = self.others[next(self.names)]
        other = other.sum(-1) if other.ndim == 2 else other
        return torch.cat([rows, other]), slice(0, len(rows))


def test_groups_are_judged_over_the_rows_of_all_ranks():
    output = sample(batch({1: [1.0, 1.0]}), ranks=OtherRank())
    assert (groups(output), output.more_prompts) == ([1], 0)
    assert output.metrics["sampling/groups"] == 2.0


@pytest.mark.parametrize(
    ("missing", "kept", "drawn", "expected"),
    [
        (1, 3, 4, 2),  # 4/3 prompts for a group, rounded up
        (6, 6, 12, 12),
        (2, 10, 12, 4),  # 2.4 -> 3 -> 4 on two ranks
        (12, 0, 12, 12),  # nothing is known: a whole step
        (11, 1, 12, 12),  # never more than a step
    ],
)
def test_the_number_of_new_prompts_follows_the_share_of_kept_groups(missing, kept, drawn, expected):
    assert prompts_to_draw(missing=missing, kept=kept, drawn=drawn, most=12, ranks=2) == expected


def nothing(values_B, **columns):
    return torch.zeros_like(values_B, dtype=torch.bool)


def test_what_an_own_filter_drops_is_counted_as_dropped_by_the_filter(monkeypatch):
    monkeypatch.setitem(FILTERS, "nothing", nothing)
    rows = batch({0: [1.0, 0.0]})
    rows["env_return"], rows["response_mask"] = torch.ones(2), torch.ones(2, 2, dtype=torch.long)
    rows["task_name"] = NonTensorStack("a", "a")
    output = sample(
        rows,
        "algorithm.filter.name=nothing",
        "algorithm.filter.max_refills=0",
    )
    assert len(output.batch) == 0
    assert output.metrics["sampling/dropped_by_filter"] == 2.0
    assert "sampling/dropped_without_signal" not in output.metrics
