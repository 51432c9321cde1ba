"""Keys of the run (length, evaluation, checkpoints, output) and the root, `SiiRLArguments`."""

from dataclasses import dataclass, field
from typing import Any

from envs.seeds import FIRST_DEMONSTRATION_SEED, FIRST_TRAINING_SEED
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.cluster_args import ClusterArguments
from siirl.params.critic_args import CriticArguments
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.env_args import EnvArguments
from siirl.params.fields import described, option
from siirl.params.model_args import ActorRolloutRefArguments, RewardModelArguments
from siirl.params.profiler_args import ProfilerArguments
from siirl.params.reward_args import CustomRewardArguments, RewardArguments

LOGGERS = ("console", "mlflow", "tensorboard", "trackio", "wandb")
SHORTEST_GRACE_S = 1.0  # shortest time that can end a step and write a checkpoint
# Three seconds; a healthy run pauses for one second to import a module or build a simulator.
SHORTEST_HANG_MINUTES = 0.05
NO_EPOCHS = (
    "start states never run out; bound the run by trainer.total_steps or trainer.max_minutes"
)


@dataclass
class TrainingArguments:
    """Length, evaluation, checkpoints and output of the run."""

    nnodes: int = option(
        1, "Machines of a Ray cluster (docs/clusters.md), n_gpus_per_node ranks on each.", minimum=1
    )
    n_gpus_per_node: int = option(
        1, "Ranks on a machine: GPUs, or CPU processes on a machine without GPU.", minimum=1
    )
    threads_per_rank: int | None = option(
        None,
        "CPU threads of a rank; null: the machine's cores divided by its ranks. "
        "During rollouts a robot policy uses one thread, because simulators share the cores.",
        why="throughput collapses when ranks compete for cores",
        minimum=1,
    )
    gpu_memory_gib: float | None = option(
        None,
        "Memory of a GPU in GiB, into which the plan must fit. This machine's smallest GPU bounds "
        "it, unless cluster.address names other machines; null: that GPU alone, or no check.",
        why="a job for other machines can be checked anywhere",
        above=0,
    )
    force_process_group: bool = option(
        False,
        "Let a single rank form a process group, so that it trains through FSDP2 and NCCL (gloo on "
        "a CPU), like several ranks.",
        why="a single rank needs neither, and its acting copy costs memory",
    )
    total_epochs: int = option(
        30,
        "Passes over the prompts of data.train_files after which the run ends.",
        why="verl's; total_steps or max_minutes usually ends a run earlier",
        minimum=1,
        text_only=NO_EPOCHS,
    )
    total_steps: int | None = option(
        None,
        "Steps after which the run ends; null: until max_minutes, or total_epochs of files.",
        minimum=1,
    )
    max_minutes: float | None = option(
        None, "Minutes of training after which no further step starts; null: no bound.", above=0
    )
    save_freq: int = option(
        10,
        "Steps between two checkpoints; -1: only at the end.",
        why="a stopped run loses ten steps at most",
        minimum=-1,
    )
    test_freq: int = option(
        5,
        "Steps between two evaluations; -1: only at the end.",
        why="an evaluation costs rollouts, like a step",
        minimum=-1,
    )
    val_before_train: bool = option(
        True, "Evaluate before the first step.", why="a gain needs a baseline"
    )
    val_episodes: int = option(
        20,
        "Held-out episodes of each task in an evaluation; 0: none.",
        why="+-22 points at 50 %",
        minimum=0,
    )
    val_seed_offset: int = option(
        0,
        f"First seed of the held-out episodes of each task, below {FIRST_DEMONSTRATION_SEED:,}: "
        "demonstrations use seeds from there on, and training from "
        f"{FIRST_TRAINING_SEED:,} on.",
        why="the first seeds that neither uses",
        minimum=0,
    )
    val_samples: int = option(
        1,
        "Sampled answers to each held-out prompt; from 2 on, pass@k is also reported.",
        why="pass@k costs k times as much",
        minimum=1,
    )
    max_staleness: int = option(
        0,
        "Largest age of a sample's weights, in training steps; rollouts run ahead by as many "
        "steps, on separate ranks (dag.groups). 0: each step waits for its rollouts.",
        why="0 is on-policy; AReaL uses 4 to 8 (arXiv 2505.24298, section 7.4). A checkpoint of a "
        "schedule waits for the rollouts of as many further steps",
        minimum=0,
        maximum=64,
    )
    critic_warmup: int = option(
        0,
        "Steps that train the critic alone, before the actor's first update.",
        why="a poor baseline is noise, not bias",
        minimum=0,
    )
    project_name: str = option("siirl", "Project of the run in wandb, mlflow and trackio.")
    experiment_name: str = option("run", "Folder of the run below output_dir.", path=True)
    logger: tuple[str, ...] = option(
        ("console", "tensorboard"),
        "Metric writers in addition to metrics.jsonl.",
        choices=LOGGERS,
        plug_in=True,
        unique=True,
    )
    tags: tuple[str, ...] = option(
        (),
        "Tags by which dashboards (TensorBoard, wandb, mlflow, trackio, your own logger) find the "
        "run.",
        unique=True,
    )
    resume: str | None = option(
        None,
        "Resume from a run folder or a checkpoint; `auto`: the newest run of this experiment_name.",
        path=True,
    )
    async_save: bool = option(
        True,
        "Continue training while a checkpoint is written from a copy in host memory, which takes "
        "12 bytes per trained parameter, divided by the ranks. False: no copy; training waits.",
        why="writing 90 GB (a 7B policy with its moments) takes minutes",
    )
    grace_s: float = option(
        25.0,
        "Seconds for a run to save a checkpoint and end after SIGTERM, SIGHUP or Ctrl-C; a "
        "second signal ends it at once.",
        why="Kubernetes and Slurm kill after 30 (terminationGracePeriodSeconds, KillWait)",
        minimum=SHORTEST_GRACE_S,
        maximum=86_400,
    )
    hang_minutes: float | None = option(
        30.0,
        "Minutes without progress of any node, episode or micro-batch after which the run ends "
        "with stack traces; null: never.",
        why="a 7B policy of 15 GB loads in 25 minutes from a disk with 10 MB/s; also torch's limit "
        "for gloo",
        minimum=SHORTEST_HANG_MINUTES,
        maximum=1200,
    )
    output_dir: str = option(
        "outputs", "Folder of all runs.", why="nothing is written elsewhere", path=True
    )
    seed: int = option(
        0,
        "Random seed of new weights, tasks, sampled actions and start states.",
        minimum=0,
        maximum=2**32 - 1,
    )
    deterministic: bool = option(
        False,
        "Make runs bit-reproducible on CPU.",
        why="a fixed order costs speed",
    )
    record_episodes: int = option(
        2,
        "Training episodes of a step to record as videos.",
        why="enough to inspect a step",
        minimum=0,
    )
    record_val_episodes: int = option(
        4,
        "Episodes of an evaluation to record as videos.",
        why="enough to inspect a step",
        minimum=0,
    )
    save_rollouts: int = option(
        64,
        "Rollouts of a step, and of an evaluation, to write to rollouts/ with tokens and "
        "log-probs; -1: all, 0: none.",
        why="whole groups to read; at 500 tokens each, a megabyte per step",
        minimum=-1,
        text_only="episodes of robots are recorded as videos: trainer.record_episodes",
    )
    blind: bool = option(False, "Give the policy black images: a control experiment for vision.")


@dataclass
class SiiRLArguments:
    """Complete configuration of a run.

    A user's group is an attribute of its name (siirl.params.user_groups).
    """

    algorithm: AlgorithmArguments = field(default_factory=AlgorithmArguments)
    data: DataArguments = field(default_factory=DataArguments)
    actor_rollout_ref: ActorRolloutRefArguments = field(default_factory=ActorRolloutRefArguments)
    critic: CriticArguments = field(default_factory=CriticArguments)
    reward_model: RewardModelArguments = field(default_factory=RewardModelArguments)
    custom_reward_function: CustomRewardArguments = field(default_factory=CustomRewardArguments)
    env: EnvArguments = field(default_factory=EnvArguments)
    reward: RewardArguments = field(default_factory=RewardArguments)
    trainer: TrainingArguments = field(default_factory=TrainingArguments)
    dag: DagArguments = field(default_factory=DagArguments)
    cluster: ClusterArguments = field(default_factory=ClusterArguments)
    profiler: ProfilerArguments = field(default_factory=ProfilerArguments)
    agents: dict[Any, Any] = field(
        default_factory=dict,
        metadata=described(
            "Keys and groups of each agent group that override those of the run: "
            "{0: {}, 1: {env: math, actor_rollout_ref: {actor: {optim: {lr: 1e-4}}}}}; "
            "{1: {shares: 0}} shares the weights of group 0 (docs/graphs.md). Nodes choose by "
            "agent_group.",
            why="one policy",
        ),
    )
    user_modules: tuple[str, ...] = option(
        (),
        "Your modules, imported in every process before names are looked up, so that they can "
        "register names.",
    )
    user_groups: dict[str, str] = field(
        default_factory=dict,
        metadata=described(
            "Your config groups: {name: module:Dataclass}; config.<name> holds an instance."
        ),
    )
    agent_configs: "dict[int, SiiRLArguments]" = field(default_factory=dict, init=False, repr=False)
    """Configuration of each agent group (siirl.params.agents); not a key: the parser fills it
    in."""
