"""Stops a run whose acting and training log-probs differ by more than rounding."""

from collections.abc import Mapping

from siirl.engine.actor.actor_loss import LARGEST_GAP, MEAN_GAP
from siirl.errors import InvariantError
from siirl.params.domains import SERVER, VLLM
from siirl.params.model_args import ActorRolloutRefArguments, ModelArguments, RolloutArguments


def require_agreement(metrics: Mapping[str, float], settings: ActorRolloutRefArguments) -> None:
    """Raise InvariantError if acting and training log-probs differ by more than rounding.

    The check uses the mean over tokens, which does not depend on the number of tokens. The maximum
    is a metric and grows with that number: of 7000 tokens in bfloat16 one was off by 0.05 in a
    sound run. Other frameworks log such numbers and do not stop: TRL the mean and the largest
    difference (`sampling/sampling_logp_difference`), verl the probability differences
    (`training/rollout_probs_diff_mean`, `_max`) and the k3 estimate of the KL, prime-rl that KL
    (`mismatch_kl`), NeMo RL the mean of `exp |difference|` (`token_mult_prob_error`), AReaL the
    importance weight (`behave_imp_weight`). Left out: a single wrong row among hundreds, which in
    bfloat16 moves the mean less than rounding does; the maximum shows it.
    """
    gap = metrics.get(MEAN_GAP, 0.0)
    bound = log_prob_gap_bound(settings.rollout, settings.model)
    if not gap <= bound:  # also true for NaN
        raise InvariantError(
            "Acting and training disagree: log-probs of the same actions and weights differ by "
            f"{gap:.2g} in the mean and by {metrics[LARGEST_GAP]:.2g} at most, and rounding "
            f"explains a mean of {bound:.2g} "
            "(actor_rollout_ref.rollout.max_log_prob_gap). The ratio of PPO would be wrong."
        )


def log_prob_gap_bound(rollout: RolloutArguments, model: ModelArguments) -> float:
    """Largest mean log-prob difference between acting and training that rounding explains.

    Measured on the shipped model: 5e-7 in float32. In bfloat16: 1e-3 to 3e-3 if one module acts and
    trains, and 9e-3 to 2e-2 if one side has bfloat16 weights (vLLM) and the other casts in the
    forward pass. Errors for comparison: a temperature of 0.9 instead of 1.0 gives 3e-2 to 6e-2, an
    off-by-one position 1.9, weights that are one step old 0.4 at lr 2e-4 and 1.6e-2 at lr 1e-5.
    Smaller steps are detectable in float32 only; the checksum of the weight sync proves in any case
    that new weights arrived (siirl.engine.training.weight_sync).
    """
    if rollout.max_log_prob_gap is not None:
        return rollout.max_log_prob_gap
    if model.dtype == "float32":
        return 1e-4
    return 3e-2 if rollout.name in (VLLM, SERVER) else 1e-2
