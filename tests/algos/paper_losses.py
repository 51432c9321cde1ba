"""Every policy loss as its paper writes it: one token after the other, in float64, with Python's
own loops. Slow and plain on purpose.

Each function returns {(row, token): loss of that token}, with gradient in `new`; the
loss of a whole row is repeated at each of its tokens.
"""

import math

import torch

LOW, HIGH, DUAL = 0.2, 0.28, 3.0
CAP = 5.0
SEQUENCE_LOW, SEQUENCE_HIGH = (
    0.2,
    0.3,
)  # wider than the papers', so that clipped and unclipped rows both occur
KL_COEF = 0.7


def kept(batch, row):
    return [t for t in range(batch.mask_BT.shape[1]) if batch.mask_BT[row, t]]


def tokens(batch):
    return [(b, t) for b in range(len(batch.mask_BT)) for t in kept(batch, b)]


def ratio(batch, new, b, t):
    return torch.exp(new[b, t] - batch.old_log_probs_BT[b, t])


def ppo(r, advantage, low=LOW, high=HIGH):
    """The gain that PPO maximises."""
    return torch.minimum(r * advantage, torch.clamp(r, 1 - low, 1 + high) * advantage)


def vanilla(batch, new):
    """arXiv 1707.06347, equation 7; arXiv 1912.09729, equation 5."""
    losses = {}
    for b, t in tokens(batch):
        advantage = batch.advantages_BT[b, t].item()
        gain = ppo(ratio(batch, new, b, t), advantage)
        if advantage < 0:
            gain = torch.maximum(gain, torch.tensor(DUAL * advantage, dtype=torch.float64))
        losses[b, t] = -gain
    return losses


def decoupled(batch, new):
    """arXiv 2110.00641: the old policy is the proximal one, the weight against the behaviour policy
    is a constant.
    """
    plain, losses = vanilla(batch, new), {}
    for b, t in tokens(batch):
        weight = math.exp((batch.old_log_probs_BT - batch.rollout_log_probs_BT)[b, t].item())
        losses[b, t] = weight * plain[b, t] if weight <= CAP else 0.0 * plain[b, t]
    return losses


def row_advantage(batch, b):
    return sum(batch.advantages_BT[b, t].item() for t in kept(batch, b)) / len(kept(batch, b))


def gspo(batch, new):
    """arXiv 2507.18071, equations 5 to 7: (pi(y) / pi_old(y))^(1 / |y|)."""
    losses = {}
    for b in {b for b, _ in tokens(batch)}:
        length = len(kept(batch, b))
        s = torch.exp(
            sum(new[b, t] - batch.old_log_probs_BT[b, t] for t in kept(batch, b)) / length
        )
        for t in kept(batch, b):
            losses[b, t] = -ppo(s, row_advantage(batch, b), SEQUENCE_LOW, SEQUENCE_HIGH)
    return losses


def gspo_token(batch, new):
    """Equations 13 and 14: s_t = stop(s) * pi_t / stop(pi_t)."""
    losses = {}
    for b, t in tokens(batch):
        length = len(kept(batch, b))
        s = math.exp(
            sum((new[b, u] - batch.old_log_probs_BT[b, u]).item() for u in kept(batch, b)) / length
        )
        s_t = s * torch.exp(new[b, t]) / math.exp(new[b, t].item())
        losses[b, t] = -ppo(s_t, batch.advantages_BT[b, t].item(), SEQUENCE_LOW, SEQUENCE_HIGH)
    return losses


def gmpo(batch, new):
    """arXiv 2507.20673: (prod_t min(r^sgn A, clip(r, e^-low, e^high)^sgn A)^(1 / sgn A))^(1 / |o|)
    A.
    """
    losses = {}
    for b in {b for b, _ in tokens(batch)}:
        advantage = row_advantage(batch, b)
        sign, product = (1.0 if advantage > 0 else -1.0), torch.ones((), dtype=torch.float64)
        for t in kept(batch, b):
            r = ratio(batch, new, b, t)
            held = torch.clamp(r, math.exp(-SEQUENCE_LOW), math.exp(SEQUENCE_HIGH))
            product = product * torch.minimum(r**sign, held**sign) ** sign
        for t in kept(batch, b):
            losses[b, t] = -advantage * product ** (1 / len(kept(batch, b)))
    return losses


def gpg(batch, new):
    """arXiv 2504.02546: the policy gradient."""
    return {(b, t): -batch.advantages_BT[b, t].item() * new[b, t] for b, t in tokens(batch)}


def cpgd(batch, new):
    """arXiv 2505.12504: PPO's bound on log r, and (r - 1) log r with a constant, bounded r."""
    losses = {}
    for b, t in tokens(batch):
        advantage, d = batch.advantages_BT[b, t].item(), new[b, t] - batch.old_log_probs_BT[b, t]
        gain = torch.minimum(
            d * advantage, torch.clamp(d, math.log(1 - LOW), math.log(1 + HIGH)) * advantage
        )
        losses[b, t] = -gain + 0.01 * (min(math.exp(d.item()), 3.0) - 1) * d
    return losses


def cispo(batch, new):
    """arXiv 2506.13585, equations 4 and 5."""
    losses = {}
    for b, t in tokens(batch):
        weight = min(max(ratio(batch, new, b, t).item(), 0.0), 5.0)
        losses[b, t] = -weight * batch.advantages_BT[b, t].item() * new[b, t]
    return losses


def sapo(batch, new):
    """arXiv 2511.20347: sigmoid(tau (r - 1)) 4 / tau."""
    losses = {}
    for b, t in tokens(batch):
        advantage = batch.advantages_BT[b, t].item()
        tau = 1.0 if advantage > 0 else 1.05
        losses[b, t] = -advantage * torch.sigmoid(tau * (ratio(batch, new, b, t) - 1)) * 4 / tau
    return losses


def clip_cov(batch, new):
    """arXiv 2505.22617: PPO's clip without the dual one; selected tokens are left out."""
    losses = {}
    for b, t in tokens(batch):
        loss = -ppo(ratio(batch, new, b, t), batch.advantages_BT[b, t].item())
        losses[b, t] = 0.0 * loss if batch.selected_BT[b, t] else loss
    return losses


def kl_cov(batch, new):
    """arXiv 2505.22617: no clip; selected tokens have the penalty |log r|."""
    losses = {}
    for b, t in tokens(batch):
        loss = -ratio(batch, new, b, t) * batch.advantages_BT[b, t].item()
        if batch.selected_BT[b, t]:
            loss = loss + KL_COEF * (new[b, t] - batch.old_log_probs_BT[b, t]).abs()
        losses[b, t] = loss
    return losses


PPO_BOUNDS = {"clip_ratio_low": LOW, "clip_ratio_high": HIGH}
SEQUENCE_BOUNDS = {"clip_ratio_low": SEQUENCE_LOW, "clip_ratio_high": SEQUENCE_HIGH}

LOOPS = {
    "vanilla": (vanilla, {**PPO_BOUNDS, "clip_ratio_c": DUAL}),
    "decoupled": (decoupled, {**PPO_BOUNDS, "clip_ratio_c": DUAL, "behaviour_weight_cap": CAP}),
    "gspo": (gspo, SEQUENCE_BOUNDS),
    "gspo_token": (gspo_token, SEQUENCE_BOUNDS),
    "gmpo": (gmpo, SEQUENCE_BOUNDS),
    "gpg": (gpg, {}),
    "cpgd": (cpgd, PPO_BOUNDS),
    "cispo": (cispo, {}),
    "sapo": (sapo, {}),
    "clip_cov": (clip_cov, PPO_BOUNDS),
    "kl_cov": (kl_cov, {"ppo_kl_coef": KL_COEF}),
}
"""Name of a loss to its loop and to the options that the loop takes for granted."""
