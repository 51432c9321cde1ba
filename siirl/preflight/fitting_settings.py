"""Finds settings with which a job fits its memory: of a GPU (`gpu_fit`), or of the host
(`host_fit`).
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Protocol, TypeVar

from envs.base import EnvSpec
from siirl.errors import SiirlError
from siirl.params import sizes
from siirl.params.build import as_text
from siirl.params.domains import is_text
from siirl.params.key_names import ACTOR, MODEL, ROLLOUT
from siirl.params.sizes import GIB
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.model_shapes import ModelShape
from siirl.preflight.policy_memory import compute_bytes, recomputes

Setting = Mapping[str, Any]
"""Values of keys that are changed together."""
Ways = Sequence[Setting]
"""Settings of the same keys, from the one that changes least to the one that saves most."""
Problems = Callable[[SiiRLArguments, Collection[str]], Collection[SiirlError]]
"""What keeps a job from starting if the command line names these keys."""
LORA_RANK = 32  # of OpenVLA-OFT's own fine-tuning (arXiv 2502.19645, appendix)
FEW_CHUNKS = 8  # observations of a pass: 3,288 places of OpenVLA-OFT, enough to fill a GPU


class Memory(Protocol):
    """Memory that must fit: of a rank, or of a run."""

    @property
    def kind(self) -> str:
        """Whose memory it is, as the object of a sentence."""


Needed = TypeVar("Needed", bound=Memory)


def remedy(
    kinds: Sequence[Ways],
    *,
    fit: str,
    needs: Callable[..., Needed | None],
    fits: Callable[[Needed | None], bool],
    accepted: Callable[[Setting], bool],
    larger: str,
) -> str:
    """Of each kind the first setting that fits alone; if there is none, a setting of several kinds
    that fits; if there is none either, those that change the memory of what does not fit.

    Args:
        kinds: Settings that save memory.
        fit: Subject and verb of the sentence that names settings.
        needs: Memory of the job with a setting, of a kind of ranks if one is given.
        fits: Whether that memory fits.
        accepted: Whether nothing else refuses a setting.
        larger: What to use besides a smaller model if nothing fits.
    """

    def works(setting: Setting) -> bool:
        return fits(needs(setting)) and accepted(setting)

    alone = [_words(way) for ways in kinds for way in [*filter(works, ways)][:1]]
    if alone:
        return f"{fit}: {'; or '.join(alone)}."
    together: list[Setting] = []
    for ways in kinds:
        others = together
        together = [*others, {}]
        for way in ways:
            if accepted(_joined([*others, way])):
                together = [*others, way]
                if fits(needs(_joined(together))):
                    return f"{fit}: {_words(_weakened(together, kinds, works))}."
    least = needs(_joined(together))
    assert least is not None  # unknown memory fits
    used = []
    for place, way in enumerate(together):
        rest = [*together[:place], *together[place + 1 :]]
        if needs(_joined(rest), least.kind) != least:
            used.append(way)
    if not used:
        return f"Use a smaller model, or {larger}."
    return (
        f"Not even {_words(_joined(used))} makes a {least.kind} fit: use a smaller model, or "
        f"{larger}."
    )


def _weakened(
    together: Sequence[Setting], kinds: Sequence[Ways], works: Callable[[Setting], bool]
) -> Setting:
    """Settings that work `together`, each left out or replaced by the first of its kind with which
    they still do.
    """
    chosen = list(together)
    for place, ways in enumerate(kinds[: len(chosen)]):
        tried = ([*chosen[:place], way, *chosen[place + 1 :]] for way in ({}, *ways))
        chosen = next(each for each in tried if works(_joined(each)))
    return _joined(chosen)


def _joined(settings: Sequence[Setting]) -> Setting:
    return {key: value for setting in settings for key, value in setting.items()}


def settings_of_a_rank(
    config: SiiRLArguments, spec: EnvSpec, *, shape: ModelShape | None, with_critic: bool
) -> Iterator[Ways]:
    """Settings that save memory of a rank on any device, by kind."""
    text, episode_steps = is_text(spec), spec.max_episode_steps
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    rollout = config.actor_rollout_ref.rollout
    row = config.data.max_prompt_length + config.data.max_response_length
    if not recomputes(model, text=text):
        yield [{f"{MODEL}.gradient_checkpointing" if text else f"{MODEL}.options.recompute": True}]
    if actor.micro_batch_tokens is not None and actor.micro_batch_tokens > row:
        yield halved(f"{ACTOR}.micro_batch_tokens", actor.micro_batch_tokens, least=row)
    if actor.micro_batch_tokens is actor.micro_batch_chunks is None:
        if actor.micro_batch_size > 1:
            yield halved(f"{ACTOR}.micro_batch_size", actor.micro_batch_size)
        if with_critic and (config.critic.micro_batch_size or 1) > 1:
            yield halved("critic.micro_batch_size", config.critic.micro_batch_size or 1)
    if not text and (actor.micro_batch_chunks or FEW_CHUNKS + 1) > FEW_CHUNKS:
        whole = actor.micro_batch_size * ceil(episode_steps / sizes.actions_of_a_pass(model))
        chunks = actor.micro_batch_chunks or whole
        yield halved(f"{ACTOR}.micro_batch_chunks", chunks, least=FEW_CHUNKS)
    if shape is not None and rollout.name == "vllm":
        token = shape.decoder.token_bytes(compute_bytes(model)) if shape.is_known else 0
        least = max(1, ceil(row * token / GIB))  # vLLM can start if one row fits
        if rollout.kv_cache_gib > least:
            yield halved(f"{ROLLOUT}.kv_cache_gib", int(rollout.kv_cache_gib), least=least)
    if rollout.name == "hf":
        yield _fewer_episodes(config)


def adapters(config: SiiRLArguments) -> Iterator[Ways]:
    """Adapters instead of all weights."""
    if config.actor_rollout_ref.model.lora.rank == 0:
        yield [{f"{MODEL}.lora.rank": LORA_RANK}]


def halved(key: str, value: int, *, least: int = 1) -> Ways:
    """A key's value halved again and again, down to `least`: the first that fits is the largest."""
    ways: list[Setting] = []
    while value // 2 > least:
        value //= 2
        ways.append({key: value})
    return [*ways, {key: least}]


def _fewer_episodes(config: SiiRLArguments) -> Ways:
    """Fewer environments of a server, and then fewer servers: each has keys and values."""
    ways: list[dict[str, Any]] = []
    each, servers = config.env.envs_per_server, config.env.num_servers
    while each > 1:
        each //= 2
        ways.append({"env.envs_per_server": each})
    fewest = ways[-1] if ways else {}
    while servers // 2 >= sizes.rollout_ranks(config.trainer, config.dag):
        servers //= 2
        ways.append({**fewest, "env.num_servers": servers})
    return ways


def _words(setting: Setting) -> str:
    """A setting as on the command line."""
    return " ".join(f"{key}={as_text(value)}" for key, value in setting.items())


def changed(config: SiiRLArguments, setting: Setting) -> SiiRLArguments:
    """A copy of `config` with other values of some keys."""
    result = copy.deepcopy(config)
    for place, value in setting.items():
        *groups, key = place.split(".")
        group: Any = result
        for name in groups:
            group = getattr(group, name)
        if isinstance(group, dict):
            group[key] = value
        else:
            setattr(group, key, value)
    return result
