"""The run: how long, how often it is tested and saved, where it writes; and the root of the
configuration, `SiiRLArguments`.
"""

from dataclasses import dataclass, field

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

LOGGERS = ("console", "tensorboard", "wandb")
SHORTEST_GRACE_S = 1.0  # in less, no step ends and no checkpoint is written
SHORTEST_HANG_MINUTES = (
    0.05  # three seconds; a healthy run pauses for one, to import a module or to make a simulator
)
NO_EPOCHS = (
    "start states are drawn without end; bound the run by trainer.total_steps or "
    "trainer.max_minutes"
)


@dataclass
class TrainingArguments:
    """The run."""

    nnodes: int = option(
        1, "Machines of a Ray cluster (docs/clusters.md), n_gpus_per_node ranks on each.", minimum=1
    )
    n_gpus_per_node: int = option(
        1, "Ranks on a machine: GPUs, or CPU processes where there is none.", minimum=1
    )
    threads_per_rank: int | None = option(
        None,
        "Processor threads of a rank that computes on a CPU; null: the machine's cores divided "
        "by its ranks. While simulators run, which "
        "share the cores, a robots' policy acts on one.",
        why="two ranks' threads on contended cores collapse",
        minimum=1,
    )
    total_epochs: int = option(
        30,
        "Passes over the prompts of data.train_files after which the run ends.",
        why="verl's; total_steps or max_minutes usually ends a run before",
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
        why="an evaluation takes rollouts, as a step does",
        minimum=-1,
    )
    val_before_train: bool = option(
        True, "Evaluate before the first step.", why="a gain needs a before"
    )
    val_episodes: int = option(
        20,
        "Held-out episodes of each task in an evaluation; 0: none.",
        why="+-22 points at 50 %",
        minimum=0,
    )
    val_seed_offset: int = option(
        0,
        "Seed of the first held-out episode of each task; training has the seeds from 1,000,000 "
        "on.",
        why="any will do",
        minimum=0,
    )
    val_samples: int = option(
        1,
        "Sampled answers to each held-out prompt; from 2 on pass@k is reported, too.",
        why="pass@k costs k times as much",
        minimum=1,
    )
    critic_warmup: int = option(
        0,
        "Steps that train the critic alone, before the actor's first update.",
        why="a poor baseline is noise, not bias",
        minimum=0,
    )
    project_name: str = option("siirl", "Heading of reports and dashboards.")
    experiment_name: str = option("run", "Folder of the run in output_dir.")
    logger: tuple[str, ...] = option(
        ("console", "tensorboard"),
        "What shows the metrics, beside metrics.jsonl.",
        choices=LOGGERS,
        plug_in=True,
        unique=True,
    )
    resume: str | None = option(
        None,
        "Go on from a run folder or a checkpoint; `auto`: the newest run of this experiment_name.",
    )
    grace_s: float = option(
        25.0,
        "Seconds in which a run ends after SIGTERM, SIGHUP or Ctrl-C, with a checkpoint of what "
        "it has trained; a second one ends it at "
        "once.",
        why="Kubernetes and Slurm kill after 30 (terminationGracePeriodSeconds, KillWait)",
        minimum=SHORTEST_GRACE_S,
        maximum=86_400,
    )
    hang_minutes: float | None = option(
        30.0,
        "Minutes without any progress, of a node, an episode or a micro-batch, after which the "
        "run ends with stack traces; null: never.",
        why="a 7B policy of 15 GB loads in 25 from a disk of 10 MB/s; torch's own limit for "
        "gloo, too",
        minimum=SHORTEST_HANG_MINUTES,
        maximum=1200,
    )
    output_dir: str = option("outputs", "Folder of all runs.", why="nothing is written elsewhere")
    seed: int = option(
        0, "Fixes weights, tasks, actions and start states.", minimum=0, maximum=2**32 - 1
    )
    deterministic: bool = option(
        False,
        "Same run, same numbers, bit for bit on CPU.",
        why="waiting for a fixed order costs speed",
    )
    record_episodes: int = option(
        2,
        "Training episodes of a step that become videos.",
        why="a look, not an archive",
        minimum=0,
    )
    record_val_episodes: int = option(
        4, "Episodes of an evaluation that become videos.", why="a look, not an archive", minimum=0
    )
    save_rollouts: int = option(
        64,
        "Rollouts of a step, and of an evaluation, that are written to rollouts/ with tokens "
        "and log-probs; -1: all, 0: none.",
        why="whole groups to read; of 500 tokens each they are a megabyte a step",
        minimum=-1,
        text_only="episodes of robots are recorded as videos: trainer.record_episodes",
    )
    blind: bool = option(False, "Show the policy black images: the control for seeing.")


@dataclass
class SiiRLArguments:
    """Everything that fixes a run. A user's own group is an attribute of its name
    (siirl.params.user_groups).
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
    user_modules: tuple[str, ...] = option(
        (),
        "Modules of your own, which are imported before names are looked up, in every process: "
        "what they register is then known.",
    )
    user_groups: dict[str, str] = field(
        default_factory=dict,
        metadata=described(
            "Groups of your own: {name: module:Dataclass}; config.<name> then holds an instance."
        ),
    )
