"""Check at the start of a run that an inference server draws by the seed of a request.

If it drew every answer by one seed, the answers to a question would be equal, and their group would
have no advantages. A trained policy may also repeat an answer, so the check raises the temperature
until all tokens are almost equally likely: four equal answers then mean that the seeds are not
used. Left out: servers that change while a run uses them.
"""

import asyncio
import logging
from collections.abc import Collection

from siirl.engine.rollout.generation import GenerationRequest
from siirl.engine.rollout.server.completions import (
    COMPLETIONS,
    BadAnswer,
    completion,
    completion_body,
    largest_answer,
)
from siirl.engine.rollout.server.handshake import call_workers
from siirl.engine.rollout.server.server_link import ServerError, ServerLink

logger = logging.getLogger(__name__)

SEEDS = (1, 2, 3, 4)
TOKENS = 8
FLAT = 1e4  # temperature: logits that differ by 100 give probabilities that differ by 1 %
MOST_IDS = 1 << 31  # a model's head may have more entries than its tokenizer


async def check_seeds(
    link: ServerLink, *, model: str, prompt: tuple[int, ...], stop_ids: Collection[int], name: str
) -> None:
    """Ask for an answer by each of `SEEDS`, and for the first one again.

    Leaves the temperature of the server's workers at `FLAT`.

    Args:
        link: The connections to the server.
        model: The server's name of the model.
        prompt: Token ids of any text.
        stop_ids: Tokens that end a continuation.
        name: Distinguishes this run's requests.

    Raises:
        ServerError: No usable answer, or seeds make no difference.
    """
    await call_workers(link, "siirl_set_temperature", str(FLAT))
    requests = [
        GenerationRequest(
            uid=f"{name}-seed-{number}", input_ids=prompt, max_new_tokens=TOKENS, seed=(seed,)
        )
        for number, seed in enumerate((*SEEDS, SEEDS[0]))
    ]
    *answers, again = await asyncio.gather(
        *(_drawn(link, request, model=model, stop_ids=stop_ids) for request in requests)
    )
    if all(answer == answers[0] for answer in answers):
        raise ServerError(
            f"The inference server at {link.url} ignores the `seed` of a request: it gives the "
            f"same answer for {len(SEEDS)} seeds, so all answers to a question would be equal. Use "
            "a server that draws each answer by the seed of its request, like vLLM."
        )
    if again != answers[0]:
        logger.warning(
            "The inference server at %s gives two answers for one seed: a request that is sent "
            "again gets another answer, and a run cannot be repeated. Use a server that draws each "
            "answer by the seed of its request, like vLLM.",
            link.url,
        )


async def _drawn(
    link: ServerLink, request: GenerationRequest, *, model: str, stop_ids: Collection[int]
) -> list[int]:
    body = completion_body(
        request, model=model, name=request.uid, top_p=1.0, top_k=None, stop_ids=sorted(stop_ids)
    )
    most = largest_answer(len(request.input_ids) + TOKENS)
    content = await link.content("POST", COMPLETIONS, body=body, most_bytes=most)
    try:
        answer = completion(
            content,
            request=request,
            vocab_size=MOST_IDS,
            version=0,
            stop_ids=stop_ids,
            decode=lambda ids: "",  # the request has no stop strings
            interrupted=False,
        )
    except BadAnswer as error:
        raise link.unusable(error) from error
    tokens: list[int] = answer.tokens.tolist()
    return tokens
