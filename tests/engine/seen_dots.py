"""A tiny random vision-language model, and pictures for it that differ in every place."""

import asyncio
import io

import numpy as np
import torch
from PIL import Image

from envs.question_pictures import PictureSource
from envs.text import message
from siirl.engine.rollout.generation import GenerationRequest
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.text_workflow import Dialogue
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.models.tiny_vlm import TinyVLMShape, new_tiny_vlm, tiny_seeing_tokenizer

SHAPE = TinyVLMShape(
    width=32, layers=2, heads=2, feed_forward=48, vision_width=32, most_pixels=80 * 48
)


def picture(seed: int, *, height: int = 48, width: int = 80) -> PictureSource:
    """Noise: 15 places of the tiny model unless the sides say otherwise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return PictureSource(data=stream.getvalue())


def seeing_model():
    """Weights that distinguish tokens and pictures, and hardly ever end a text."""
    model = new_tiny_vlm(seed=0, shape=SHAPE)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, generator=generator))
    return model


def prompt_of(text: str, *pictures: PictureSource):
    """Tokens and pictures of a question."""
    tokenizer = tiny_seeing_tokenizer(SHAPE)
    ids = tokenizer.encode_prompt([message("user", text)], pictures)
    return ids, tokenizer.pictures_of(pictures)


def answered(model, prompts, *, tokens=24, greedy=False, begun=()):
    """Answers of `HFEngine` to all prompts at once."""
    engine = HFEngine(model=model, tokenizer=tiny_seeing_tokenizer(SHAPE), max_running=4)

    async def everybody():
        return await asyncio.gather(
            *(
                engine.agenerate(
                    GenerationRequest(
                        uid=str(number),
                        input_ids=(*ids, *begun),
                        max_new_tokens=tokens,
                        seed=(number,),
                        greedy=greedy,
                        pictures=pictures,
                    )
                )
                for number, (ids, pictures) in enumerate(prompts)
            )
        )

    return asyncio.run(everybody())


def row_of(number: int, prompt, answer):
    """The training sample of an answer."""
    ids, pictures = prompt
    dialogue = Dialogue(prompt=ids, messages=[], pictures=pictures)
    dialogue.say(answer)
    dialogue.end_turn("", 0)
    dialogue.note(float(number % 3), {"success": True})
    request = EpisodeRequest(
        uid=f"{number:03d}", group_id=0, task="", task_id=0, trial_id=0, seed=0, policy_seed=(0,)
    )
    return dialogue.row(request, uid=f"{number:03d}", truncated=False)
