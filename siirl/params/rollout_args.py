"""The keys actor_rollout_ref.rollout.*: how texts and actions are generated."""

from dataclasses import dataclass, field

from siirl.params.fields import option
from siirl.params.server_args import ServerArguments

NO_LM_ENGINE = "robots act through the training module itself"


@dataclass
class RolloutArguments:
    """Settings of the policy's rollouts."""

    name: str = option(
        "embodied",
        "Rollout engine: embodied for robots; hf, vllm or server for language models.",
        choices=("embodied", "hf", "vllm", "server"),
        refused={"sglang": "choose rollout=vllm, rollout=hf or rollout=server"},
    )
    n: int = option(
        8,
        "Rollouts of a prompt: the group size.",
        why="as in SimpleVLA-RL (arXiv 2509.09674) and TRL",
        minimum=1,
        maximum=10_000,
    )
    n_steps: int | None = option(
        None,
        "Decisions in each environment between two updates, across the ends of episodes; the "
        "critic's value stands for the rewards after a cut or a truncation. "
        "data.train_batch_size is then the number of environments, and ppo_mini_batch_size counts "
        "decisions. null: whole episodes. pipeline=ppo.",
        why="comparing a group, and a video, need whole episodes; trainer=classic_control, "
        "mujoco_control and atari_like set it",
        minimum=1,
    )
    temperature: float = option(
        1.0,
        "Divides the logits, when acting and when training.",
        why="the policy as it is",
        above=0,
    )
    noise_correlation: float = option(
        0.0,
        "In training, the correlation of the random numbers that choose successive actions of an "
        "episode. Each action keeps its distribution; correlated noise moves the arm further, so "
        "that rollouts from one start state end differently. Evaluations draw independent numbers.",
        why="the ratio assumes independent actions",
        minimum=0,
        maximum=0.99,
    )
    top_p: float = option(
        1.0,
        "Sample from the smallest token set with this total probability.",
        why="less than 1 biases the ratio",
        above=0,
        maximum=1,
    )
    top_k: int | None = option(
        None,
        "Sample from this many most likely tokens; null: all.",
        why="a limit biases the ratio",
        minimum=1,
        text_only=NO_LM_ENGINE,
    )
    workflow: str | None = option(
        None,
        "Episode workflow: `module:name` of your siirl.engine.rollout.workflow.RolloutWorkflow; "
        "null: siirl's.",
        text_only=NO_LM_ENGINE,
    )
    stop: tuple[str, ...] = option(
        (),
        "Stop strings that end a turn, in addition to the end token.",
        unique=True,
        text_only=NO_LM_ENGINE,
    )
    mode: str | None = option(
        None,
        "With trainer.max_staleness above 0, `sync` starts the episodes of a step together, while "
        "null and `async` start them continuously, and new weights reach running ones. "
        "rollout=vllm generates in a separate process if episodes are started continuously, and "
        "with `async` also without max_staleness.",
        choices=("sync", "async"),
    )
    tensor_model_parallel_size: int = option(
        1,
        "GPUs of one language-model engine. Each rank gets as many and trains on the first; with "
        "dag.groups only rollout ranks do.",
        why="a 7B model in bfloat16 takes 15 GB",
        minimum=1,
        text_only=NO_LM_ENGINE,
    )
    kv_cache_gib: float = option(
        1.0,
        "KV-cache memory of rollout=vllm, in GiB.",
        why="37 000 tokens of Qwen2.5 1.5B",
        above=0,
        text_only=NO_LM_ENGINE,
    )
    sleep: bool = option(
        True,
        "vLLM on a GPU of a rank that also trains frees its memory between rollouts: weights move "
        "to the host, keys and values are dropped. vLLM on a CPU cannot.",
        why="training and vLLM share a GPU",
        text_only=NO_LM_ENGINE,
    )
    update_weights_bucket_megabytes: int = option(
        512,
        "Memory of a weight transfer to vLLM or a server; larger weights are cut.",
        why="verl's: a layer of a 7B model",
        minimum=1,
        text_only=NO_LM_ENGINE,
    )
    max_log_prob_gap: float | None = option(
        None,
        "Largest mean gap between acting and training log-probs of the same weights before the "
        "run stops; null: 1e-4 (bfloat16: 1e-2; with vLLM, servers and compiled blocks 3e-2, on a "
        "GPU 1e-1, as for text there).",
        above=0,
    )
    server: ServerArguments = field(default_factory=ServerArguments)
