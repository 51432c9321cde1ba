"""Loss of the actor's update, built from its configuration: policy loss, entropy, KL, aggregation.

The loss of a token is `policy loss * importance weight - entropy_coef * entropy + kl_loss_coef *
KL`; all terms are aggregated in the same way, with denominators over the whole mini-batch. With
`ratio_level=decision` all of this holds for decisions: a decision's tokens become one before the
loss. Entropy and KL of the update are logged per token in both cases.
`ActorLoss` refuses an invalid configuration at construction.
"""

# B row (trajectory), T token

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.aggregation import AGGREGATIONS, aggregate_loss, aggregation_weight
from siirl.algos.importance import check_importance, importance_weights
from siirl.algos.kl import KL_ESTIMATORS, is_kl_estimator, kl_estimate
from siirl.algos.log_probs import TokenScores
from siirl.algos.policy_losses import (
    LOSS_TRAITS,
    POLICY_LOSSES,
    check_clip,
    check_loss_options,
    log_ratio,
    policy_loss,
    select_tokens,
)
from siirl.algos.ranks import Ranks
from siirl.algos.tensor_checks import as_bool_mask, require_finite, require_same_shape
from siirl.engine.actor.decision_columns import executed_decisions, of_decisions
from siirl.engine.training.batch_loss import LossSum
from siirl.errors import ConfigError, UnknownNameError
from siirl.params import ActorArguments
from siirl.params.key_names import ACTOR
from siirl.params.sizes import has_kl_loss

SELECTED = "selected_tokens"
"""Column that a selection over the mini-batch adds."""
# Gap between rollout and training log-probs over the tokens of an optimiser step: its maximum, its
# sum, and the number of tokens.
LARGEST_GAP = "rollout/log_prob_gap"
MEAN_GAP = "rollout/log_prob_gap_mean"
COMPARED = "compared tokens"
# Number of tokens, also where decisions are counted, and the metrics that are means over it.
OWN_TOKENS = "own tokens"
APPROX_KL = "actor/approx_kl"
PER_TOKEN = frozenset({"actor/entropy", "actor/ppo_kl", APPROX_KL})
BOUNDS = ("clip_ratio_low", "clip_ratio_high")
ALGOS = "siirl.algos."
DECISION = "decision"


class ActorLoss:
    """A configured loss.

    Args:
        config: The group `actor_rollout_ref.actor`.
        horizon: Tokens of the longest possible response; needed by
            `loss_agg_mode=seq-mean-token-sum-norm` only.
        decision_tokens: Tokens of a decision, of which a row has a multiple; read with
            `ratio_level=decision` only.

    Raises:
        ConfigError: An unknown loss, option, aggregation or KL estimator, one that lacks a setting,
            or inconsistent bounds.
    """

    def __init__(
        self, config: ActorArguments, *, horizon: int | None = None, decision_tokens: int = 1
    ) -> None:
        self.config = config
        self.decision_tokens = decision_tokens if config.ratio_level == DECISION else 1
        self.horizon = None if horizon is None else -(-horizon // self.decision_tokens)
        self.name = config.loss
        if self.name not in POLICY_LOSSES:
            raise UnknownNameError.of(
                kind=f"policy loss ({ACTOR}.loss)", name=self.name, known=POLICY_LOSSES
            )
        self.traits = LOSS_TRAITS[self.name]
        if config.ratio_level == DECISION and self.selects:
            raise ConfigError(
                f"{ACTOR}.loss={self.name} selects single tokens, but {ACTOR}.ratio_level="
                f"{DECISION} has one ratio for all tokens of a decision: set {ACTOR}.ratio_level="
                "token, or take another loss."
            )
        self.clip = _bounds(config)
        check_loss_options(self.name, config.loss_options)
        self.aggregation = config.loss_agg_mode or self.traits.aggregation
        if self.aggregation not in AGGREGATIONS:
            raise UnknownNameError.of(
                kind="loss_agg_mode", name=self.aggregation, known=AGGREGATIONS
            )
        if AGGREGATIONS[self.aggregation].needs_horizon and horizon is None:
            raise ConfigError(
                f"loss_agg_mode={self.aggregation} divides by the longest possible response: pass "
                "`horizon` to the Actor."
            )
        if config.use_kl_loss and not is_kl_estimator(config.kl_loss_type):
            raise UnknownNameError.of(
                kind="KL estimator (kl_loss_type)", name=config.kl_loss_type, known=KL_ESTIMATORS
            )
        self.weighted = config.importance.level is not None
        if config.importance.level is not None:
            check_importance(
                level=config.importance.level,
                bound=config.importance.bound,
                high=config.importance.high,
                low=config.importance.low,
            )
            if self.traits.own_weights:
                raise ConfigError(
                    f"{ACTOR}.loss={self.name} has its own importance weights: leave "
                    f"{ACTOR}.importance.level out, or take loss=vanilla."
                )

    @property
    def selects(self) -> bool:
        """Whether tokens are selected over the whole mini-batch before its first micro-batch."""
        return self.traits.selection is not None

    @property
    def is_built_in(self) -> bool:
        """Whether loss and KL estimator are siirl's own, which change no argument in place."""
        functions: list[Callable[..., Any]] = [POLICY_LOSSES[self.name]]
        if self.config.use_kl_loss:
            functions.append(KL_ESTIMATORS[self.config.kl_loss_type.removesuffix("+")])
        return all(function.__module__.startswith(ALGOS) for function in functions)

    @property
    def advantage_only(self) -> bool:
        """Whether zero-advantage rows contribute no gradient (no entropy, KL or drift term)."""
        return self.traits.times_advantage and self.config.entropy_coef == 0 and not self.uses_kl

    @property
    def sums_tokens(self) -> bool:
        """Whether the loss is a sum over tokens that do not depend on each other.

        Micro-batches may then cut rows (`TrainEngine.train_batch`).
        """
        return (
            self.traits.token_by_token
            and AGGREGATIONS[self.aggregation].sums_tokens
            and self.config.importance.level in (None, "token")
        )

    @property
    def uses_kl(self) -> bool:
        """Whether the KL to the reference policy has a weight."""
        return has_kl_loss(self.config)

    @property
    def needs_behaviour(self) -> bool:
        """Whether rollout log-probs are needed in addition to recomputed old ones."""
        return self.weighted or self.traits.own_weights

    def describe(self) -> str:
        """The resolved loss in a few words, for the plan."""
        reads = _parameters(self.name)
        clip = {name: self.clip.get(name, reads[name]) for name in BOUNDS if name in reads}
        options = [
            f"{name}={value}" for name, value in {**clip, **self.config.loss_options}.items()
        ]
        weights = (
            f"; importance weights: {self.config.importance.bound}, {self.config.importance.level}"
            if self.weighted
            else ""
        )
        settings = f" ({', '.join(options)})" if options else ""
        level = "; by decision" if self.config.ratio_level == DECISION else ""
        return f"{self.name}{settings}, {self.aggregation}{weights}{level}"

    def weight(self, rows: TensorDict) -> torch.Tensor:
        """Contribution of these rows to the denominator."""
        executed = executed_decisions(rows["response_mask"], tokens=self.decision_tokens)
        return aggregation_weight(mask_BT=executed, mode=self.aggregation)

    def check_columns(self, rows: TensorDict, old_column: str) -> None:
        """Refuse numbers of this rank that would fail in a selection over all ranks."""
        kept_BT = as_bool_mask(rows["response_mask"])
        columns = {name: rows[name] for name in ("advantages", old_column)}
        require_same_shape(response_mask=kept_BT, **columns)
        require_finite(mask=kept_BT, **columns)

    def select(
        self,
        rows: TensorDict,
        *,
        log_probs_BT: torch.Tensor,
        old_column: str,
        place_B: torch.Tensor,
        generator: Any,
        ranks: Ranks,
    ) -> torch.Tensor:
        """Bool [B, T]: this rank's tokens that the loss treats differently (`select_tokens`)."""
        available = {
            "log_probs_BT": log_probs_BT,
            "old_log_probs_BT": rows[old_column].to(log_probs_BT.dtype),
            "advantages_BT": rows["advantages"],
            "mask_BT": as_bool_mask(rows["response_mask"]),
            "place_B": place_B,
            "generator": generator,
            "ranks": ranks,
        }
        return select_tokens(
            name=self.name, available={**available, **self.clip, **self.config.loss_options}
        )

    def of_micro_batch(
        self,
        scores: TokenScores,
        rows: TensorDict,
        *,
        old_column: str,
        gap: bool,
        version: int | None,
    ) -> LossSum:
        """The loss of a micro-batch as a sum, for `TrainEngine.train_batch`.

        Args:
            scores: Scores of the current weights, with gradient.
            rows: The micro-batch.
            old_column: Column of old log-probs.
            gap: Whether the weights are those of rollout, so that training and rollout log-probs
                can be compared.
            version: Version of these weights; rows of other versions are left out of the
                comparison. None: no row is left out.
        """
        own_tokens = as_bool_mask(rows["response_mask"]).sum()
        followed = {} if self.config.target_kl is None else _approx_kl(scores, rows, old_column)
        gaps: tuple[torch.Tensor, torch.Tensor] | None = None
        if gap and "rollout_log_probs" in rows:
            gaps = _log_prob_gap(scores.log_probs_BT, rows, version)
        if self.decision_tokens > 1:
            scores, rows = of_decisions(scores, rows, tokens=self.decision_tokens)
        kept_BT = as_bool_mask(rows["response_mask"])
        log_probs_BT = scores.log_probs_BT
        old_BT = rows[old_column].to(log_probs_BT.dtype)
        # Check log-probs first, so that a user's loss is not blamed for the model's.
        log_ratio_BT = log_ratio(
            log_probs_BT=log_probs_BT.detach(), old_log_probs_BT=old_BT, mask_BT=kept_BT
        )
        require_finite(mask=kept_BT, entropy=scores.entropy_BT.detach())
        available = self._arguments(rows, log_probs_BT, old_BT, kept_BT)
        result = policy_loss(name=self.name, available=available)
        tokens_BT = {"entropy": scores.entropy_BT, **result.metrics_BT}
        if self.weighted:
            tokens_BT["importance_weight"] = available["importance_weights_BT"]
        loss_BT = result.loss_BT
        if self.config.entropy_coef != 0:
            loss_BT = loss_BT - self.config.entropy_coef * scores.entropy_BT
        if self.uses_kl:
            tokens_BT["kl_loss"] = self._kl(log_probs_BT, rows, kept_BT)
            loss_BT = loss_BT + self.config.kl_loss_coef * tokens_BT["kl_loss"]
        maxima = {"actor/ratio_max": log_ratio_BT.max().exp()}
        sums = {
            f"actor/{name}": torch.where(kept_BT, value.detach(), 0.0).sum()
            for name, value in tokens_BT.items()
        }
        if gaps is not None:
            gap_BT, compared_BT = gaps
            maxima[LARGEST_GAP] = gap_BT.max()
            sums |= {MEAN_GAP: gap_BT.sum(), COMPARED: compared_BT.sum()}
        aggregated = functools.partial(
            aggregate_loss,
            mask_BT=kept_BT,
            mode=self.aggregation,
            denominator=1.0,
            horizon=self.horizon,
        )
        loss = aggregated(loss_BT=loss_BT)
        pg_loss = loss if loss_BT is result.loss_BT else aggregated(loss_BT=result.loss_BT)
        counts = {"tokens": kept_BT.sum(), OWN_TOKENS: own_tokens, "pg_loss": pg_loss}
        return LossSum(loss=loss, sums={**counts, **sums, **followed}, maxima=maxima)

    def _kl(
        self, log_probs_BT: torch.Tensor, rows: TensorDict, kept_BT: torch.Tensor
    ) -> torch.Tensor:
        return kl_estimate(
            log_probs_BT=log_probs_BT,
            ref_log_probs_BT=rows["ref_log_prob"],
            mask_BT=kept_BT,
            name=self.config.kl_loss_type,
        )

    def _importance_weights(
        self, rows: TensorDict, old_BT: torch.Tensor, kept_BT: torch.Tensor
    ) -> torch.Tensor:
        settings = self.config.importance
        assert settings.level is not None
        return importance_weights(
            old_log_probs_BT=old_BT,
            rollout_log_probs_BT=rows["rollout_log_probs"].to(old_BT.dtype),
            mask_BT=kept_BT,
            level=settings.level,
            bound=settings.bound,
            high=settings.high,
            low=settings.low,
        )

    def _arguments(
        self,
        rows: TensorDict,
        log_probs_BT: torch.Tensor,
        old_BT: torch.Tensor,
        kept_BT: torch.Tensor,
    ) -> dict[str, Any]:
        """Available `siirl.algos.policy_losses.LOSS_ARGUMENTS`, and the loss's options."""
        arguments = {
            "log_probs_BT": log_probs_BT,
            "old_log_probs_BT": old_BT,
            "advantages_BT": rows["advantages"],
            "mask_BT": kept_BT,
            "loss_agg_mode": self.aggregation,
            "config": self.config,
            **self.clip,
            **self.config.loss_options,
        }
        if "rollout_log_probs" in rows:
            arguments["rollout_log_probs_BT"] = rows["rollout_log_probs"]
        if self.weighted:
            arguments["importance_weights_BT"] = self._importance_weights(rows, old_BT, kept_BT)
        if self.selects:
            arguments["selected_BT"] = rows[SELECTED]
        return arguments


def _bounds(config: ActorArguments) -> dict[str, float | None]:
    """Clip bounds of the configured loss.

    They are the actor's, or none if the loss has its own; a key that the loss does not read is
    refused.
    """
    given: dict[str, float | None] = {
        name: getattr(config, name) for name in BOUNDS if getattr(config, name) is not None
    }
    own = LOSS_TRAITS[config.loss].own_bounds
    reads = _parameters(config.loss)
    if not is_built_in(config.loss):
        # A pipeline's bounds apply to PPO's ratio; a user's loss gets only the bounds that it
        # reads.
        given = {name: value for name, value in given.items() if name in reads or "config" in reads}
    if "config" not in reads:
        _refuse_unread(config, given, reads, own=own)
    if own:
        check_clip(**{**dict.fromkeys(BOUNDS, 0.0), **given})  # type: ignore[arg-type]
        return given
    bounds = {
        **dict.fromkeys(BOUNDS, config.clip_ratio),
        **given,
        "clip_ratio_c": config.clip_ratio_c,
    }
    check_clip(**bounds)  # type: ignore[arg-type]
    return bounds


def is_built_in(loss: str) -> bool:
    """Whether a registered policy loss is siirl's own."""
    return POLICY_LOSSES[loss].__module__.startswith(ALGOS)


def _refuse_unread(
    config: ActorArguments,
    given: Mapping[str, float | None],
    reads: Mapping[str, Any],
    *,
    own: bool,
) -> None:
    defaults = ActorArguments()
    unread = [name for name in given if name not in reads]
    unread += ["clip_ratio"] if own and config.clip_ratio != defaults.clip_ratio else []
    unread += (
        ["clip_ratio_c"]
        if "clip_ratio_c" not in reads
        and config.clip_ratio_c not in (None, defaults.clip_ratio_c)  # None: no dual clip
        else []
    )
    for name in unread:
        clips = [bound for bound in BOUNDS if bound in reads]
        remedy = f"its bounds are {' and '.join(clips)}" if clips else "it does not clip"
        raise ConfigError(
            f"{ACTOR}.{name}={getattr(config, name)} is not read by {ACTOR}.loss={config.loss}, "
            f"{remedy}: leave it out."
        )


def _parameters(name: str) -> dict[str, Any]:
    """Parameters of the loss and its selection, with defaults."""
    selection = LOSS_TRAITS[name].selection
    parameters = dict(inspect.signature(POLICY_LOSSES[name]).parameters)
    if selection is not None:
        parameters |= inspect.signature(selection).parameters
    return {key: parameter.default for key, parameter in parameters.items()}


def _approx_kl(scores: TokenScores, rows: TensorDict, old_column: str) -> dict[str, torch.Tensor]:
    """Sum over tokens of the k3 estimate of the update's KL (http://joschu.net/blog/kl-approx.html).

    It is never negative; the mean of a few `-log ratio` may be, after an update that went far.
    """
    log_ratio_BT = log_ratio(
        log_probs_BT=scores.log_probs_BT.detach(),
        old_log_probs_BT=rows[old_column].to(scores.log_probs_BT.dtype),
        mask_BT=as_bool_mask(rows["response_mask"]),
    )
    return {APPROX_KL: (log_ratio_BT.exp() - 1 - log_ratio_BT).sum()}


def _log_prob_gap(
    log_probs_BT: torch.Tensor, rows: TensorDict, version: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute differences [B, T] of training and rollout log-probs, and where they are compared.

    Only rows of `version` are compared; differences are 0 elsewhere.
    """
    kept_BT = as_bool_mask(rows["response_mask"])
    if version is not None:
        kept_BT = kept_BT & (rows["policy_version"] == version)[:, None]
    difference_BT = (log_probs_BT.detach() - rows["rollout_log_probs"]).abs()
    return torch.where(kept_BT, difference_BT, torch.zeros_like(difference_BT)), kept_BT
