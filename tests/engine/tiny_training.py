"""A tiny policy, trajectories for it, and an engine that records its gradients."""

# B trajectory, C chunk, S token of a chunk

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tensordict import TensorDict
from torch import nn

from siirl.algos.distributions import Categorical
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.training.batch_loss import BatchLoss, TrainStep
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.saved_state import state_tensors
from siirl.engine.training.train_engine import TrainEngine
from siirl.files.weight_files import weight_files
from siirl.models.stored_tensors import StoredTensors
from siirl.models.weight_rows import full_tensor
from siirl.params import ActorArguments, OptimizerArguments

CHUNKS, TOKENS, BINS, FEELINGS = 4, 3, 5, 2


class TinyPolicy(nn.Module):
    """Pixels, proprioception and words in; TOKENS tokens of BINS bins out.

    Its blocks are in a ModuleList, as in a transformer.
    """

    def __init__(self, *, seed: int = 0, width: int = 6) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words = nn.Embedding(7, width)
            self.inputs = nn.Linear(12 + FEELINGS, width)
            self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, TOKENS * BINS)
        self.register_buffer("scale", torch.tensor(1 / 255))

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Categorical:
        assert pixel_values is not None and proprioception is not None
        seen = torch.cat([pixel_values.flatten(1) * self.scale, proprioception], dim=1)
        hidden = self.inputs(seen) + self.words(instruction_ids).mean(1)
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return Categorical(self.head(self.norm(hidden)).unflatten(1, (TOKENS, BINS)))


def trajectories(rows: int, *, seed: int = 0, masked_rows: tuple[int, ...] = ()) -> TensorDict:
    """Ragged trajectories: row b has executed 2 + 5 b (modulo) tokens of CHUNKS * TOKENS.

    `masked_rows` have executed none.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = CHUNKS * TOKENS
    lengths_B = torch.tensor(
        [0 if row in masked_rows else 2 + 5 * row % (tokens - 1) for row in range(rows)],
        dtype=torch.long,
    )
    mask_BT = torch.arange(tokens) < lengths_B[:, None]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    batch = TensorDict(
        {
            "pixel_values": torch.randint(
                256, (rows, CHUNKS, 1, 2, 2, 3), generator=generator, dtype=torch.uint8
            ),
            "proprioception": normal(rows, CHUNKS, FEELINGS),
            "instruction_ids": torch.randint(7, (rows, 3), generator=generator),
            "responses": torch.randint(BINS, (rows, tokens), generator=generator),
            "response_mask": mask_BT.float(),
            "old_log_probs": -1.6 + 0.3 * normal(rows, tokens),
            "rollout_log_probs": -1.6 + 0.3 * normal(rows, tokens),
            "ref_log_prob": -1.6 + 0.3 * normal(rows, tokens),
            "advantages": normal(rows, 1).expand(rows, tokens).clone(),
            "policy_version": torch.zeros(rows, dtype=torch.long),
        },
        batch_size=[rows],
    )
    batch["uid"] = [f"{row:03d}" for row in range(rows)]
    return batch


class RecordingEngine(TrainEngine):
    """Records the gradient of every optimiser step, and the number of rows of the last."""

    gradients: list[dict[str, torch.Tensor]]
    rows_seen: int

    def accumulate_gradient(self, batch: TensorDict, *arguments: Any, **named: Any) -> BatchLoss:
        self.rows_seen = len(batch)
        return super().accumulate_gradient(batch, *arguments, **named)

    def apply_gradient(self, batch_loss: BatchLoss) -> TrainStep:
        gradients = {
            name: full_tensor(weight.grad).clone()
            for name, weight in self.module.named_parameters()
            if weight.grad is not None
        }
        self.gradients = [*getattr(self, "gradients", []), gradients]
        return super().apply_gradient(batch_loss)


def make_engine(
    ranks: Collectives | None = None, *, module: nn.Module | None = None, **options: Any
) -> RecordingEngine:
    """An initialised engine, by default with a constant learning rate of 0.01."""
    settings: dict[str, Any] = {
        "scorer": embodied_scorer,
        "optim": OptimizerArguments(lr=0.01, scheduler="constant_with_warmup", warmup_ratio=0.0),
        "total_steps": None,
        "micro_batch_size": 4,
        "temperature": 1.3,
    }
    engine = RecordingEngine(
        module=module or TinyPolicy(), ranks=ranks or OneProcess(), **{**settings, **options}
    )
    engine.initialize()
    return engine


def make_actor(
    engine: TrainEngine,
    *,
    seed: int = 0,
    horizon: int | None = 20,
    decision_tokens: int = 1,
    **config: Any,
) -> Actor:
    """An actor whose mini-batches are the whole batch, by default."""
    arguments = ActorArguments(**{"ppo_mini_batch_size": 1000, **config})
    return Actor(
        engine=engine,
        config=arguments,
        rollouts_per_prompt=1,
        seed=seed,
        horizon=horizon,
        decision_tokens=decision_tokens,
    )


def weights(engine: TrainEngine) -> dict[str, torch.Tensor]:
    """Copies of the whole weights."""
    return {name: tensor.clone() for name, tensor in engine.upload_weights().items()}


def stored_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in a policy folder, in one file or several."""
    stored = StoredTensors(weight_files(folder))
    return {name: stored.whole(name) for name in stored.types}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of any entry, relative to the largest entry (max norm)."""
    assert one.keys() == other.keys()
    scale = max(float(tensor.abs().max()) for tensor in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


def write_old_files(engine: TrainEngine, folder: Path) -> None:
    """The files that an engine of siirl 0.1 wrote on one rank."""
    state = state_tensors(engine.module, engine.optimizer, steps=engine.steps)
    weights = {n.removeprefix("model/"): t for n, t in state.items() if n.startswith("model/")}
    others = {name: tensor for name, tensor in state.items() if not name.startswith("model/")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in {"model": weights, "optimizer": others}.items():
        save_file(
            {key: tensor.detach().contiguous() for key, tensor in tensors.items()},
            folder / f"{name}.safetensors",
        )
