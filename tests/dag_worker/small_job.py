"""A small run with checkpoints."""

from tiny_training import TinyPolicy, make_actor, make_engine, trajectories

from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.engine.training.collectives import OneProcess
from siirl.params import OptimizerArguments

OPTIM = OptimizerArguments(lr=0.01, scheduler="cosine_with_warmup", warmup_steps=2)


class Job:
    """A small run: an actor with mini-batches and a falling schedule, its checkpoints, and one
    counter.
    """

    def __init__(self, folder, ranks=None, *, seed=0, module=None, **options):
        self.ranks = ranks or OneProcess()
        self.engine = make_engine(
            self.ranks, module=module or TinyPolicy(seed=seed), optim=OPTIM, total_steps=12
        )
        self.actor = make_actor(self.engine, ppo_mini_batch_size=3, seed=seed)
        self.checkpoints = CheckpointManager(
            folder=folder, engines={"actor": self.engine}, ranks=self.ranks, **options
        )
        self.step = 0

    def train(self, steps):
        for _ in range(steps):
            self.step += 1
            batch = trajectories(6, seed=self.step)
            share = 6 // self.ranks.size
            self.actor.update(batch[self.ranks.rank * share : (self.ranks.rank + 1) * share])
        return self

    def save(self):
        return self.checkpoints.save(step=self.step, state={"actor": self.actor.state_dict()})

    def resume(self, checkpoint=None):
        found = self.checkpoints.load(checkpoint)
        self.step = found.step
        self.actor.load_state_dict(found.state["actor"])
        return self
