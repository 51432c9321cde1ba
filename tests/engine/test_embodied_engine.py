"""The engine that answers episodes: batching, sampling by the episode's own numbers, log-probs,
lockstep.
"""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from siirl.engine.rollout.acting import ActRequest
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.errors import ConfigError, RunFailed
from siirl.models import ActionTokenizer, Categorical, Gaussian


class TwoTokens(nn.Module):
    """Two tokens of four bins, with logits that the proprioception chooses; remembers the size of
    each batch.
    """

    chunk_length = 2
    tokens_per_chunk = uniforms_per_chunk = 2
    action_tokenizer = ActionTokenizer(bins=4, low=(-1.0,), high=(1.0,))
    distribution = Categorical

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.batches: list[list[float]] = []

    def tokenize_instruction(self, text):
        return np.zeros(1, np.int64)

    def forward(self, *, pixel_values, proprioception, instruction_ids):
        self.batches.append(proprioception[:, 0].tolist())
        logits = torch.tensor([0.0, 1.0, 2.0, 3.0]) * proprioception[:, :1]
        return Categorical(logits[:, None].expand(-1, 2, -1) + self.bias)


def request(uid: str, value: float, uniforms: list[float] | None) -> ActRequest:
    numbers = None if uniforms is None else np.array(uniforms, np.float32)
    return ActRequest(uid, None, np.array([value], np.float32), np.zeros(1, np.int64), numbers)


def engine(policy=None, *, temperature=1.0, lockstep=False, batch_rows=8) -> EmbodiedEngine:
    return EmbodiedEngine(
        policy=policy or TwoTokens(),
        temperature=temperature,
        lockstep=lockstep,
        batch_rows=batch_rows,
    )


def ask(engine: EmbodiedEngine, *requests: ActRequest):
    async def everybody():
        return await asyncio.gather(*(engine.act(request) for request in requests))

    return asyncio.run(everybody())


def test_requests_that_wait_together_share_one_forward_pass():
    policy = TwoTokens()
    ask(engine(policy), *(request(str(i), float(i), [0.5, 0.5]) for i in range(5)))
    assert policy.batches == [[0.0, 1.0, 2.0, 3.0, 4.0]]


def test_a_policy_that_returns_another_class_than_it_names_is_refused():
    policy = TwoTokens()
    policy.distribution = Gaussian
    with pytest.raises(
        ConfigError, match=r"returned a Categorical, but .*distribution is Gaussian"
    ):
        ask(engine(policy), request("a", 0.0, [0.5, 0.5]))


def test_a_distribution_of_another_number_of_tokens_is_refused():
    policy = TwoTokens()
    policy.tokens_per_chunk = 4
    with pytest.raises(
        ConfigError, match=r"forward returned a distribution of 2 tokens, but a chunk has 4: "
    ):
        ask(engine(policy), request("a", 0.0, [0.5, 0.5]))


@pytest.mark.parametrize(
    ("mean", "log_std", "what"),
    [(float("nan"), 0.0, "values"), (float("inf"), 0.0, "values"), (0.0, -200.0, "log-probs")],
)
def test_actions_that_are_not_finite_are_refused_by_the_name_of_the_policy(mean, log_std, what):
    class Growing(TwoTokens):
        distribution = Gaussian

        def forward(self, *, pixel_values, proprioception, instruction_ids):
            shape = (len(proprioception), 2)
            return Gaussian(torch.full(shape, mean) + self.bias, torch.full(shape, log_std))

    with pytest.raises(RunFailed, match=rf"Growing acted with {what} that are not finite"):
        ask(engine(Growing()), request("a", 0.0, [0.25, 0.5]))


def test_log_probs_of_another_shape_are_refused():
    @dataclass(eq=False)
    class Joint(Categorical):
        def log_prob(self, choices):
            return super().log_prob(choices).sum(-1)

    class Policy(TwoTokens):
        def forward(self, **inputs):
            return Joint(super().forward(**inputs).logits)

    with pytest.raises(
        ConfigError, match=r"Joint.log_prob returned the shape \(1,\) of float32; expected \(1, 2\)"
    ):
        ask(engine(Policy()), request("a", 0.0, [0.5, 0.5]))


def test_a_users_distribution_is_checked_before_its_first_actions():
    @dataclass(eq=False)
    class Narrow(Categorical):
        def mode(self):
            return super().mode()[:, :1]

    class Policy(TwoTokens):
        def forward(self, **inputs):
            return Narrow(super().forward(**inputs).logits)

    with pytest.raises(ConfigError, match=r"Narrow\.mode returned the shape \(1, 1\)"):
        ask(engine(Policy()), request("a", 0.0, [0.5, 0.5]))


def test_a_tempered_distribution_that_is_none_is_refused_without_a_traceback(caplog):
    @dataclass(eq=False)
    class Forgetful(Categorical):
        def tempered(self, temperature):
            pass

    class Policy(TwoTokens):
        def forward(self, **inputs):
            return Forgetful(super().forward(**inputs).logits)

    with pytest.raises(ConfigError, match=r"Forgetful\.tempered returned a NoneType"):
        ask(engine(Policy()), request("a", 0.0, [0.5, 0.5]))
    assert not caplog.records  # asyncio logs an exception that nobody awaits


def test_a_batch_is_cut_at_its_largest_size():
    policy = TwoTokens()
    ask(engine(policy, batch_rows=2), *(request(str(i), 0.0, [0.5, 0.5]) for i in range(5)))
    assert [len(batch) for batch in policy.batches] == [2, 2, 1]


def test_tokens_invert_the_cumulative_distribution_of_the_episodes_own_numbers():
    (answer,) = ask(engine(), request("a", 0.0, [0.10, 0.80]))  # four bins of probability 0.25
    assert answer.choices.tolist() == [0, 3]
    np.testing.assert_allclose(answer.log_probs, np.log(0.25), rtol=1e-6)


@pytest.mark.parametrize("number", [0.0, np.nextafter(np.float32(1), np.float32(0))])
def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last_bin(number):
    (answer,) = ask(engine(), request("a", 0.0, [float(number)] * 2))
    assert answer.choices.tolist() == ([0, 0] if number == 0.0 else [3, 3])


def test_temperature_divides_the_logits_of_the_log_probs_too():
    (answer,) = ask(engine(temperature=2.0), request("a", 2.0, [0.0, 0.0]))
    expected = torch.log_softmax(torch.tensor([0.0, 1.0, 2.0, 3.0]), 0)[0]
    np.testing.assert_allclose(answer.log_probs, [expected] * 2, rtol=1e-6)


def test_sampling_frequencies_are_the_probabilities():
    numbers = (np.arange(4000) + 0.5) / 4000
    policy = engine()
    answers = ask(
        policy, *(request(str(i), 1.0, [number, number]) for i, number in enumerate(numbers))
    )
    shares = np.bincount([answer.choices[0] for answer in answers], minlength=4) / 4000
    np.testing.assert_allclose(
        shares, torch.softmax(torch.tensor([0.0, 1.0, 2.0, 3.0]), 0), atol=5e-4
    )


def test_top_p_never_draws_outside_of_the_nucleus():
    cut = EmbodiedEngine(
        policy=TwoTokens(), temperature=1.0, lockstep=False, batch_rows=64, top_p=0.8
    )
    # probabilities 0.03, 0.09, 0.24, 0.64
    answers = ask(cut, *(request(str(i), 1.0, [i / 50, i / 50]) for i in range(50)))
    assert {int(token) for answer in answers for token in answer.choices} == {2, 3}


def test_a_greedy_request_takes_the_most_likely_tokens_beside_sampled_ones():
    greedy, sampled = ask(engine(), request("a", 1.0, None), request("b", 1.0, [0.0, 0.0]))
    assert greedy.choices.tolist() == [3, 3]
    assert sampled.choices.tolist() == [0, 0]


def test_an_episodes_draws_do_not_depend_on_its_batch():
    alone = ask(engine(), request("a", 0.7, [0.3, 0.9]))[0]
    together = ask(
        engine(),
        *(request(str(i), float(i), [0.1, 0.1]) for i in range(6)),
        request("a", 0.7, [0.3, 0.9]),
    )[-1]
    assert alone.choices.tolist() == together.choices.tolist()


def test_lockstep_waits_for_every_episode_sorts_by_uid_and_pads():
    policy = TwoTokens()
    locked = engine(policy, lockstep=True, batch_rows=3)
    locked.expect(episodes=2, at_once=3)

    async def late(delay: float, asked: ActRequest):
        await asyncio.sleep(delay)
        return await locked.act(asked)

    async def everybody():
        await asyncio.gather(
            late(0.0, request("b", 2.0, None)), late(0.05, request("a", 1.0, None))
        )

    asyncio.run(everybody())
    assert policy.batches == [[1.0, 2.0, 2.0]]


def test_a_cancelled_request_takes_no_place_in_a_later_pass():
    policy = TwoTokens()
    locked = engine(policy, lockstep=True, batch_rows=2)
    locked.expect(episodes=2, at_once=2)

    async def late():
        for _ in range(5):  # iterations of the loop, in which a pass would begin
            await asyncio.sleep(0)
        return await locked.act(request("c", 3.0, None))

    async def everybody():
        cancelled = asyncio.ensure_future(locked.act(request("a", 1.0, None)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        async with asyncio.timeout(30.0):
            await asyncio.gather(locked.act(request("b", 2.0, None)), late())

    asyncio.run(everybody())
    assert policy.batches == [[2.0, 3.0]]


def test_lockstep_continues_when_an_episode_ends():
    locked = engine(lockstep=True, batch_rows=2)
    locked.expect(episodes=2, at_once=2)

    async def scenario():
        asking = asyncio.create_task(locked.act(request("a", 0.0, None)))
        await asyncio.sleep(0.01)
        assert not asking.done()
        locked.episode_ended()
        return await asking

    assert asyncio.run(scenario()).choices.tolist() == [0, 0]


class Broken(TwoTokens):
    """Fails at every call."""

    def forward(self, **inputs):
        raise RuntimeError("boom")


# an episode that was cancelled during the forward pass
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_failing_policy_fails_all_waiting_episodes_of_this_and_the_next_pass(cancelled):
    async def scenario(broken: EmbodiedEngine):
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        asked = [asyncio.create_task(broken.act(request(str(i), 0.0, None))) for i in range(3)]
        await asyncio.sleep(0)
        if cancelled:
            asked[0].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    ends = [str(error) for error in asyncio.run(scenario(engine(Broken(), batch_rows=2)))]
    assert ends == ["" if cancelled else "boom", "boom", "boom"]


def test_a_pass_waits_for_a_third_of_the_running_episodes():
    policy = TwoTokens()
    batching = engine(policy)
    batching.expect(episodes=9, at_once=6)

    async def scenario():
        first = asyncio.create_task(batching.act(request("a", 0.0, None)))
        await asyncio.sleep(0.01)
        assert not first.done()
        await asyncio.gather(first, batching.act(request("b", 1.0, None)))

    asyncio.run(scenario())
    assert policy.batches == [[0.0, 1.0]]


def test_the_last_running_episode_is_answered_at_once():
    batching = engine()
    batching.expect(episodes=1, at_once=6)
    (answer,) = ask(batching, request("a", 0.0, None))
    assert answer.choices.tolist() == [0, 0]
