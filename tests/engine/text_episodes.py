"""Plays text episodes with a scripted engine."""

import asyncio

from scripted_text import ByteTokenizer, ScriptedEngine

from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.env_server.pool import EnvPool

ROW = {
    "data_source": "mine",
    "prompt": [{"role": "user", "content": "2+3="}],
    "reward_model": {"style": "whole", "ground_truth": "5"},
    "extra_info": {"page": 7},
}


def request(number=0, **options):
    options = options or {"row": ROW}
    return EpisodeRequest(
        uid=f"u{number}",
        group_id=number,
        task="mine",
        task_id=0,
        trial_id=3,
        seed=number,
        policy_seed=(9, number),
        options=options,
    )


def play(script, *, env="math", arguments=None, requests=None, interrupting=None, **settings):
    """The result of the episodes, and the engine that answered with `script`."""
    engine = ScriptedEngine(script, pause=1 if interrupting else 0)
    lengths = {"max_prompt_length": 600, "max_response_length": 400}

    async def episodes():
        async with EnvPool(env, arguments or {}, 1, 4, cluster="local", deadline_s=600) as pool:
            workflow = TextWorkflow(pool=pool, tokenizer=ByteTokenizer(), **lengths | settings)
            inference = InferenceEngine(engine)
            inference.advance_on(asyncio.get_running_loop())
            running = asyncio.ensure_future(inference.episodes(requests or [request()], workflow))
            if interrupting:
                await interrupting(engine)
            return await running

    return asyncio.run(episodes()), engine
