"""The engine on the training module: keys and values in slots, continuous batching, lockstep,
interruption.
"""

import asyncio
import copy

import numpy as np
import pytest
import torch
from hf_engines import PROMPTS, ask, batches, engine, never_ending
from tiny_language_models import language_model, request, scored

from siirl.engine.rollout.generation import GenerationRequest
from siirl.engine.rollout.hf.hf_engine import HFEngine, portions
from siirl.engine.rollout.hf.key_value_cache import SlotCache, attend

# Keys and values


FAMILIES = [
    ("Qwen2", {}),
    ("Qwen2", {"shared": 4}),
    ("Qwen3", {"shared": 2, "head_dim": 16}),
    ("Llama", {"shared": 2}),
    ("Llama", {"shared": 4, "attn_implementation": "eager"}),
    ("Mistral", {"shared": 2, "sliding_window": 8}),
    ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    ("Falcon", {"alibi": False}),
    (
        "Qwen2",
        {"shared": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
]


@pytest.mark.parametrize(("family", "options"), FAMILIES, ids=lambda value: str(value))
def test_log_probs_are_those_of_one_pass_without_a_cache(family, options):
    model = language_model(family, **options)
    requests = [request(str(i), prompt, tokens=10) for i, prompt in enumerate(PROMPTS)]
    for asked, answer in zip(requests, ask(engine(model, temperature=1.3), *requests), strict=True):
        expected = scored(model, asked.input_ids, answer.tokens, temperature=1.3)
        np.testing.assert_allclose(answer.log_probs, expected, atol=2e-5)


def test_greedy_tokens_are_those_of_generate():
    model = language_model("Llama", shared=2)
    ids = torch.tensor([list(b"17+25=")])
    expected = model.causal_lm.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=None,
    )
    sure = engine(model)
    sure.stop_ids = np.array([], np.int64)
    (answer,) = ask(sure, request("a", "17+25=", tokens=12, greedy=True))
    assert answer.tokens.tolist() == expected[0, 6:].tolist()


def test_a_request_gets_the_same_tokens_whatever_it_is_batched_with():
    model = language_model(shared=2)
    alone = [
        ask(engine(model), request(str(i), prompt, tokens=12))[0]
        for i, prompt in enumerate(PROMPTS)
    ]
    together = ask(
        engine(model, max_running=3),
        *(request(str(i), prompt, tokens=12) for i, prompt in enumerate(PROMPTS)),
    )
    assert [answer.tokens.tolist() for answer in together] == [
        answer.tokens.tolist() for answer in alone
    ]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_the_training_module_is_left_as_it_was():
    model = language_model(attn_implementation="eager")
    before = copy.deepcopy(model.state_dict())
    ask(engine(model), request("a", "1+2="))
    assert model.causal_lm.config._attn_implementation == "eager"
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not any(weight.is_inference() for weight in model.parameters())


def test_bfloat16_passes_agree_with_training_in_bfloat16():
    model = language_model(shared=2)
    (answer,) = ask(engine(model, compute_dtype=torch.bfloat16), request("a", "17+25=", tokens=10))
    with torch.autocast("cpu", torch.bfloat16):
        expected = scored(model, tuple(b"17+25="), answer.tokens)
    assert float((torch.from_numpy(answer.log_probs) - expected).abs().mean()) < 3e-2


def test_bfloat16_attention_rounds_where_training_does():
    """Three rows of lengths 40, 7 and 1; plain attention, which rounds scores and weights at once,
    is ten times as far away.
    """
    query, key, value = (
        torch.randn(3, 2, length, 16, generator=torch.Generator().manual_seed(length)).bfloat16()
        for length in (1, 40, 41)
    )
    value, lengths_R = value[:, :, :40], torch.tensor([40, 7, 1])
    bias = torch.zeros(3, 1, 1, 40).masked_fill(
        torch.arange(40) >= lengths_R[:, None, None, None], -torch.inf
    )
    expected = (
        torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.bfloat16()
        )
        .transpose(1, 2)
        .float()
    )
    found = attend(torch.nn.Module(), query, key, value, bias)[0].float()
    plain = (
        ((query @ key.transpose(2, 3) * 0.25 + bias.bfloat16()).softmax(-1) @ value)
        .transpose(1, 2)
        .float()
    )
    assert float((found - expected).abs().mean()) < 0.1 * float((plain - expected).abs().mean())


def test_keys_are_kept_in_the_type_of_the_passes():
    cache = SlotCache()
    cache.reserve(rows=1, length=8)
    cache.prefill(slots=torch.tensor([0]), prompts=torch.tensor([0]))
    with torch.autocast("cpu", torch.bfloat16):
        keys, _ = cache.update(torch.full((1, 2, 3, 4), 1 / 3), torch.ones(1, 2, 3, 4), 0)
    assert keys.dtype == torch.float32  # the pass over the prompt uses its own keys
    assert cache.keys[0].dtype == torch.bfloat16
    assert cache.keys[0][0, 0, 0, 0] == torch.tensor(1 / 3).bfloat16()


# Batching


def test_identical_prompts_are_computed_once():
    model = language_model()
    passes = batches(model)
    ask(engine(model), *(request(str(i), "17+25=", tokens=1) for i in range(5)))
    assert passes == [(1, 5), (5, 1)]  # all but the last token once, then the last one of each


def test_samples_of_one_prompt_differ_by_their_seeds():
    first, second, again = ask(
        engine(), *(request("a", "x", tokens=20, seed=seed) for seed in ((1,), (2,), (1,)))
    )
    assert first.tokens.tolist() == again.tokens.tolist() != second.tokens.tolist()


def test_finished_rows_leave_and_waiting_ones_join():
    model = language_model()
    passes = batches(model)
    never = engine(model, max_running=2)
    never.stop_ids = np.array([], np.int64)
    ask(
        never, request("a", "x", tokens=2), request("b", "y", tokens=5), request("c", "z", tokens=3)
    )
    assert [rows for rows, _ in passes] == [
        2,
        2,
        2,
        2,
        2,
    ]  # a and b, then c in a's place: prompts of one token need no prefill


def test_few_joiners_wait_until_there_are_enough_of_them():
    model = language_model()
    batching = engine(model, max_running=32)
    batching.stop_ids = np.array([], np.int64)
    passes = batches(model)

    async def scenario():
        long = [
            asyncio.create_task(batching.agenerate(request(f"{i:02d}", "x", tokens=40)))
            for i in range(16)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = asyncio.create_task(batching.agenerate(request("late", "y", tokens=1)))
        await late
        begun = len(passes)
        await asyncio.gather(*long)
        return begun

    # one is less than an eighth of sixteen: it joins after sixteen passes
    assert 16 <= asyncio.run(scenario()) <= 19
    assert max(rows for rows, _ in passes) == 17


def test_prompts_are_cut_into_passes_of_similar_length():
    lengths = [
        [len(prompt) for prompt in part]
        for part in portions([(1,) * n for n in (5, 90, 4, 100, 3)], most_tokens=200)
    ]
    assert lengths == [[100, 90], [5, 4, 3]]


def test_a_prompt_longer_than_a_pass_is_processed():
    assert portions([(1,) * 300], most_tokens=200) == [[(1,) * 300]]


def test_the_event_loop_runs_between_two_passes():
    model = language_model()
    events: list[str] = []
    model.causal_lm.get_input_embeddings().register_forward_hook(
        lambda *call: events.append("pass")
    )
    running = engine(model)
    running.stop_ids = np.array([], np.int64)

    async def ticks():
        while events.count("pass") < 3:
            events.append("tick")
            await asyncio.sleep(0)

    async def scenario():
        await asyncio.gather(running.agenerate(request("a", "x", tokens=4)), ticks())

    asyncio.run(scenario())
    first, second = (
        index
        for index, event in enumerate(events)
        if event == "pass" and events[:index].count("pass") < 2
    )
    assert "tick" in events[first:second]


# Lockstep


def test_lockstep_begins_when_every_episode_waits_and_goes_by_uid():
    model = language_model()
    seen: list[list[int]] = []
    model.causal_lm.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0][:, 0].tolist())
    )
    locked = engine(model, lockstep=True)
    locked.expect(episodes=2, at_once=8)

    async def late(delay: float, asked: GenerationRequest):
        await asyncio.sleep(delay)
        return await locked.agenerate(asked)

    async def everybody():
        await asyncio.gather(
            late(0.0, request("b", "y", tokens=1)), late(0.05, request("a", "x", tokens=1))
        )

    asyncio.run(everybody())
    assert seen == [[ord("x"), ord("y")]]


def test_lockstep_continues_when_an_episode_ends():
    locked = engine(lockstep=True)
    locked.expect(episodes=2, at_once=2)

    async def scenario():
        asking = asyncio.create_task(locked.agenerate(request("a", "x", tokens=2)))
        await asyncio.sleep(0.01)
        assert not asking.done()
        locked.episode_ended()
        return await asking

    assert len(asyncio.run(scenario()).tokens) == 2


def test_lockstep_repeats_bit_for_bit_whatever_the_timing():
    model = language_model(shared=2)

    def run(delays: list[float]) -> list[bytes]:
        locked = engine(model, lockstep=True, max_running=2)
        locked.expect(episodes=4, at_once=4)

        async def episode(number: int):
            answers = []
            for turn in range(2):
                await asyncio.sleep(delays[number])
                answers.append(
                    await locked.agenerate(
                        request(f"{number}-{turn}", PROMPTS[number], tokens=3 + 4 * number)
                    )
                )
            locked.episode_ended()
            return b"".join(answer.log_probs.tobytes() for answer in answers)

        async def everybody():
            return await asyncio.gather(*map(episode, range(4)))

        return asyncio.run(everybody())

    assert run([0.0, 0.0, 0.0, 0.0]) == run([0.03, 0.0, 0.02, 0.01])


# Interruptions and failures


def test_an_interruption_returns_the_partial_answers():
    model = language_model()
    (whole,) = ask(never_ending(model), request("a", "17+25=", tokens=60))
    cut = never_ending(model, max_running=1)

    async def scenario():
        running = asyncio.create_task(cut.agenerate(request("a", "17+25=", tokens=60)))
        queued = asyncio.create_task(cut.agenerate(request("b", "1+1=", tokens=60)))
        while cut.counts.tokens < 5:
            await asyncio.sleep(0)
        cut.interrupt()
        return await running, await queued, await cut.agenerate(request("a", "17+25=", tokens=60))

    partial, nothing, later = asyncio.run(scenario())
    assert partial.finish_reason == nothing.finish_reason == "abort"
    assert partial.tokens.tolist() == whole.tokens[:5].tolist()
    assert len(nothing.tokens) == len(nothing.log_probs) == 0
    assert later.tokens.tolist() == whole.tokens.tolist()


def test_a_cancelled_caller_frees_the_row():
    model = language_model()
    running = never_ending(model, max_running=1)

    async def scenario():
        tired = asyncio.create_task(running.agenerate(request("a", "x", tokens=100)))
        other = asyncio.create_task(running.agenerate(request("b", "y", tokens=2)))
        while running.counts.tokens < 3:
            await asyncio.sleep(0)
        tired.cancel()
        return await other

    assert len(asyncio.run(scenario()).tokens) == 2
    assert running.counts.tokens < 20


def test_an_error_in_a_pass_reaches_every_waiting_request():
    model = language_model()
    broken = engine(model, max_running=1)

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        bad = request("a", (999_999,), tokens=2)  # no such token
        both = await asyncio.gather(
            broken.agenerate(bad), broken.agenerate(request("b", "x")), return_exceptions=True
        )
        return both, await broken.agenerate(request("c", "x", tokens=2))

    errors, later = asyncio.run(scenario())
    assert [type(error) for error in errors] == [IndexError, IndexError]
    assert len(later.tokens) == 2


def test_idle_slots_give_their_memory_back():
    idle = engine()
    ask(idle, request("a", "17+25="))
    assert idle.cache.keys == []


def test_the_largest_keys_and_values_of_a_rollout_are_counted_also_after_their_release():
    counted = engine()
    assert counted.take_memory() == {"keys_values": 0}
    allocated = []
    counted.model.causal_lm.get_input_embeddings().register_forward_hook(
        lambda *_: allocated.append((*counted.cache.keys, *counted.cache.values))
    )
    ask(counted, *(request(name, "17+25=", tokens=4) for name in "abc"))
    assert counted.take_memory() == {"keys_values": sum(each.nbytes for each in allocated[-1])}
    assert counted.take_memory() == {"keys_values": 0}


def test_statistics_count_requests_passes_and_tokens():
    counting = never_ending()
    ask(counting, request("a", "17+25=", tokens=4), request("b", "1+1=", tokens=2))
    stats = counting.take_stats()
    assert (stats["calls"], stats["forward_passes"], stats["tokens"]) == (
        2,
        5,
        6,
    )  # one prefill, four passes
    assert stats["busy_s"] > 0
    assert set(counting.take_stats().values()) == {0.0}


def test_a_closed_engine_cancels_waiting_requests():
    async def scenario(closing: HFEngine):
        waiting = asyncio.create_task(closing.agenerate(request("a", "x", tokens=100)))
        await asyncio.sleep(0)
        closing.close()
        closing.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario(never_ending()))
