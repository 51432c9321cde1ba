"""Requests and answers of the route /v1/completions: token ids in, token ids and log-probs out.

The form is that of vLLM's OpenAI-compatible server (0.32, `vllm.entrypoints.openai.completion
.protocol`). An answer is checked before it becomes a `GenerationResponse`: its form, token ids
within the vocabulary, valid log-probs, and an end that its tokens and the request explain. Left
out: streaming, several prompts per request.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from siirl.engine.rollout.generation import FinishReason, GenerationRequest, GenerationResponse
from siirl.engine.rollout.stop_strings import SPARE_TOKENS, Decode, longest_in_tokens

COMPLETIONS = "/v1/completions"
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort")
# Neutral values of sampling options that siirl's engines lack: a server would take missing options
# from the model's generation_config.json.
NEUTRAL = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
}
IMPOSSIBLE = -9999.0  # vLLM's value for lower log-probs; JSON has no infinity
ROUNDING = 1e-3  # a token of probability 1 may have a log-prob this much above 0
# Bytes of an answer: its frame, and for each token its text, number and log-prob, each as JSON
# twice.
FRAME_BYTES, TOKEN_BYTES = 1 << 16, 1 << 10


class BadAnswer(ValueError):
    """An invalid answer; the message describes the fault, without the server's name."""


def completion_body(
    request: GenerationRequest,
    *,
    model: str,
    name: str,
    top_p: float,
    top_k: int | None,
    stop_ids: Sequence[int],
) -> dict[str, Any]:
    """The request as JSON.

    The request says temperature 1, because the server's workers already divide the logits.
    Log-probs are therefore those of the whole distribution, whatever top-p and top-k.

    Args:
        request: The prompt and its sampling settings.
        model: The server's name of the model.
        name: Id of the request at the server.
        top_p: Draw from the smallest set of tokens with this probability.
        top_k: Draw from this many most likely tokens; None: from all.
        stop_ids: Tokens that end a continuation.
    """
    drawing = (
        {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
        if request.greedy
        else {"temperature": 1.0, "top_p": top_p, "top_k": top_k or 0}
    )
    return {
        "model": model,
        "request_id": name,
        "prompt": list(request.input_ids),
        "max_tokens": request.max_new_tokens,
        "seed": int(np.random.SeedSequence(request.seed).generate_state(1)[0]),
        "stop": list(request.stop),
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **NEUTRAL,
        **drawing,
    }


def scoring_body(ids: Sequence[int], *, model: str) -> dict[str, Any]:
    """A request for the log-probs of `ids`, without a continuation."""
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 0,
        "echo": True,
        "logprobs": 0,
        "temperature": 1.0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **NEUTRAL,
    }


def largest_answer(tokens: int) -> int:
    """Largest size in bytes of an answer with `tokens` tokens."""
    return FRAME_BYTES + TOKEN_BYTES * tokens


def completion(
    content: bytes,
    *,
    request: GenerationRequest,
    vocab_size: int,
    version: int,
    stop_ids: Collection[int],
    decode: Decode,
    interrupted: bool,
) -> GenerationResponse:
    """The checked answer to `completion_body`.

    Args:
        content: The answer's body.
        request: The request that was sent.
        vocab_size: Token ids are below this.
        version: Version of the weights that generated the answer.
        stop_ids: Tokens that end a continuation.
        decode: Text of tokens, in which stop strings are looked for.
        interrupted: Whether the run interrupted the request; no other one may end with `abort`.

    Raises:
        BadAnswer: Wrong form or impossible values.
    """
    choice = _choice(content)
    reason = choice.get("finish_reason")
    if reason not in FINISH_REASONS:
        raise BadAnswer(f"finish_reason={reason!r} is not one of {', '.join(FINISH_REASONS)}")
    tokens = _token_ids(choice, vocab_size=vocab_size)
    log_probs = _log_probs(choice, count=len(tokens))
    most = request.max_new_tokens
    if len(tokens) > most:
        raise BadAnswer(f"it has {len(tokens)} tokens, but at most {most} were requested")
    if reason == "length" and len(tokens) < most:
        raise BadAnswer(
            f"it was cut after {len(tokens)} of {most} tokens: the server applies its own limit "
            "(start vLLM with --generation-config vllm)"
        )
    if reason == "stop" and not tokens:
        raise BadAnswer("it has no tokens, not even an end token")
    if reason == "abort" and not interrupted:
        raise BadAnswer(
            "it was aborted, but not by this run (finish_reason='abort'): see the server's log, "
            "and give each run its own server"
        )
    _check_end(tokens, reason=reason, stop_ids=stop_ids, stop=request.stop, decode=decode)
    ended = bool(tokens) and tokens[-1] in stop_ids  # some servers look at the limit first
    return GenerationResponse(
        tokens=np.array(tokens, np.int64),
        log_probs=np.array(log_probs, np.float32),
        versions=np.full(len(tokens), version, np.int64),
        finish_reason="stop" if ended else reason,
    )


def scored_log_probs(content: bytes, *, ids: Sequence[int]) -> list[float]:
    """Log-probs of all tokens of `ids` but the first, from the answer to `scoring_body`.

    Raises:
        BadAnswer: Wrong form.
    """
    choice = _choice(content)
    listed = _listed_log_probs(choice)
    if len(listed) != len(ids):
        raise BadAnswer(f"it scores {len(listed)} tokens, but the text has {len(ids)}")
    return _numbers(listed[1:], first=1)


def _check_end(
    tokens: Sequence[int],
    *,
    reason: FinishReason,
    stop_ids: Collection[int],
    stop: Sequence[str],
    decode: Decode,
) -> None:
    """Refuse tokens behind an end, and the reason `stop` without one."""
    for place, token in enumerate(tokens[:-1], start=1):
        if token in stop_ids:
            raise BadAnswer(
                f"{len(tokens) - place} tokens follow its end token {token}: the server does not "
                "apply `stop_token_ids`"
            )
    if stop:
        # A server reads a character that spans several tokens, and so the string, some tokens late.
        found = _string_in(decode(tokens[:-SPARE_TOKENS]), stop)
        if found:
            raise BadAnswer(f"its text goes on after {found!r}: the server does not apply `stop`")
    if reason != "stop" or tokens[-1] in stop_ids:
        return
    # some tokenizers leave out a space at the beginning
    newest = f" {decode(tokens[-longest_in_tokens(stop) :])}"
    if not _string_in(newest, stop):
        raise BadAnswer(
            "it has finish_reason='stop', but ends with neither an end token nor a stop string of "
            "the request: the server has another tokenizer, or its own rule for the end of a text"
        )


def _string_in(text: str, stop: Sequence[str]) -> str:
    """A stop string in `text`; empty if there is none."""
    return next((string for string in stop if string in text), "")


def _choice(content: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"it is not JSON ({error})") from error
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadAnswer("it lacks `choices` with one entry")
    choice: Mapping[str, Any] = choices[0]
    return choice


def _token_ids(choice: Mapping[str, Any], *, vocab_size: int) -> list[int]:
    tokens = choice.get("token_ids")
    if not isinstance(tokens, list):
        raise BadAnswer("it lacks `token_ids`, which vLLM 0.32 returns on request")
    for place, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise BadAnswer(
                f"token {place} is {token!r}, but the vocabulary is 0 to "
                f"{vocab_size - 1}: the server has another model"
            )
    return tokens


def _log_probs(choice: Mapping[str, Any], *, count: int) -> list[float]:
    if count == 0:
        return []
    listed = _listed_log_probs(choice)
    if len(listed) != count:
        raise BadAnswer(f"it has {count} tokens but {len(listed)} log-probs")
    return _numbers(listed, first=0)


def _listed_log_probs(choice: Mapping[str, Any]) -> list[Any]:
    found = choice.get("logprobs")
    listed = found.get("token_logprobs") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise BadAnswer("it lacks `logprobs.token_logprobs`")
    return listed


def _numbers(listed: Sequence[Any], *, first: int) -> list[float]:
    for place, value in enumerate(listed, start=first):
        is_number = isinstance(value, float | int) and IMPOSSIBLE < value <= ROUNDING
        if not is_number:  # also for NaN, which every comparison refuses
            raise BadAnswer(
                f"the log-prob of token {place} is {value!r}: the weights or the server's "
                "arithmetic are broken (restart it; if it happens again, lower the learning rate)"
            )
    return list(listed)
