"""Which tasks or prompts a step trains on, and how many."""

from dataclasses import dataclass

from siirl.params.fields import option

NO_FILES = "the tasks of an embodied job come from its environment (env.tasks)"
NO_PROMPT = "an instruction is no prompt of tokens; episodes are bounded by env.max_episode_steps"


@dataclass
class DataArguments:
    """Tasks or prompts of a step."""

    train_files: tuple[str, ...] = option((), "Files with training prompts (parquet or jsonl).", text_only=NO_FILES)
    val_files: tuple[str, ...] = option((), "Files with held-out prompts.", text_only=NO_FILES)
    train_batch_size: int = option(
        512,
        "Prompts of a step, over all ranks; for robots a prompt is a task with a start state. Times rollout.n gives the trajectories.",
        why="the architecture guide's, for eight GPUs; trainer=laptop sets a small one",
        minimum=1,
    )
    max_prompt_length: int = option(2048, "Longest prompt in tokens.", why="the architecture guide's", minimum=1, text_only=NO_PROMPT)
    max_response_length: int = option(4096, "Longest response in tokens.", why="the architecture guide's", minimum=1, text_only=NO_PROMPT)
    num_loader_workers: int = option(4, "Processes that read prompts.", why="the architecture guide's", minimum=0, text_only=NO_FILES)
    seed: int = option(0, "Fixes the order of tasks and their start states.", why="configs/train.yaml sets it to trainer.seed", minimum=0)
