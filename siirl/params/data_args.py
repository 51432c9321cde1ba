"""Which tasks or prompts a step trains on, and how many."""

from dataclasses import dataclass

from siirl.params.fields import option

NO_FILES = "the tasks of an embodied job come from its environment (env.tasks)"
NO_PROMPT = "an instruction is no prompt of tokens; episodes are bounded by env.max_episode_steps"


@dataclass
class DataArguments:
    """Tasks or prompts of a step."""

    train_files: tuple[str, ...] = option(
        (), "Files with training prompts (parquet or jsonl).", unique=True, text_only=NO_FILES
    )
    val_files: tuple[str, ...] = option(
        (), "Files with held-out prompts.", unique=True, text_only=NO_FILES
    )
    train_batch_size: int = option(
        512,
        "Prompts of a step, over all ranks; for robots a prompt is a task with a start state. "
        "Times actor_rollout_ref.rollout.n gives the "
        "trajectories.",
        why="DAPO (arXiv 2503.14476), section 4.1; trainer=laptop sets a small one",
        minimum=1,
        maximum=1_000_000,  # a slip of the finger: nobody simulates as many
    )
    task_weights: tuple[int, ...] = option(
        (),
        "Prompts of each task, in the order of env.tasks, in a pass over them; 0 leaves a task "
        "to evaluations. Empty: one of each.",
        why="a step is balanced over tasks",
    )
    task_sampling: str = option(
        "even",
        "`even`: as many prompts of each task as task_weights says. `learnable`: more of tasks "
        "that succeed now and then, fewer of those "
        "that always or never do.",
        why="every task has as many episodes then, whatever is compared",
        choices=("even", "learnable"),
    )
    max_prompt_length: int = option(
        2048,
        "Longest prompt in tokens.",
        why="about 1500 words of English",
        minimum=1,
        text_only=NO_PROMPT,
    )
    max_response_length: int = option(
        4096,
        "Longest response in tokens.",
        why="room for worked steps; time and memory of a step grow with it",
        minimum=1,
        text_only=NO_PROMPT,
    )
    overlong_prompts: str = option(
        "filter",
        "Prompts of more than max_prompt_length tokens: `filter` leaves them out, `cut` keeps "
        "their last tokens. Both are counted.",
        why="a cut prompt asks another question",
        choices=("filter", "cut"),
        text_only=NO_PROMPT,
    )
    heldout_share: float = option(
        0.05,
        "Share of train_files' questions that is held out, by a hash of the question; not read "
        "where there are val_files.",
        why="of 7,500 questions 370: an accuracy to within 5 points",
        minimum=0,
        maximum=0.9,
        text_only=NO_FILES,
    )
    num_loader_workers: int = option(
        0,
        "Processes of a rank that read and tokenize prompts ahead of time; 0: rows are read "
        "when they are asked for.",
        why="a step's rows take milliseconds, a process seconds to start; four pay from 100,000 "
        "prompts on",
        minimum=0,
        text_only=NO_FILES,
    )
    seed: int = option(
        0,
        "Fixes the order of tasks and their start states.",
        why="configs/train.yaml sets it to trainer.seed",
        minimum=0,
    )
