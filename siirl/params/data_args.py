"""Keys of the training data: tasks or prompts of a step."""

from dataclasses import dataclass

from siirl.params.fields import option

NO_FILES = "the tasks of an embodied job come from its environment (env.tasks)"
NO_PROMPT = "an instruction is not a token prompt; episodes are bounded by env.max_episode_steps"


@dataclass
class DataArguments:
    """Tasks or prompts of a step."""

    train_files: tuple[str, ...] = option(
        (),
        "Files or folders with training prompts (parquet or jsonl), or data sets of the Hub.",
        unique=True,
        text_only=NO_FILES,
        path=True,
    )
    val_files: tuple[str, ...] = option(
        (),
        "Files, folders or data sets of the Hub with held-out prompts.",
        unique=True,
        text_only=NO_FILES,
        path=True,
    )
    train_batch_size: int = option(
        512,
        "Prompts of a step, over all ranks; for robots, a prompt is a task with a start state. "
        "Multiplied by actor_rollout_ref.rollout.n, it gives the trajectories.",
        why="DAPO (arXiv 2503.14476), section 4.1; trainer=laptop sets a small one",
        minimum=1,
        maximum=1_000_000,  # more is a typing error
    )
    task_weights: tuple[int, ...] = option(
        (),
        "Prompts of each task per pass, in the order of env.tasks; 0: evaluate only. Empty: one "
        "of each.",
        why="a step is balanced over tasks",
    )
    task_sampling: str = option(
        "even",
        "`even`: prompts by task_weights. `learnable`: more prompts of tasks with medium "
        "success, fewer of tasks that always or never succeed.",
        why="equal episodes per task keep runs comparable",
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
        why="leaves room for worked steps; time and memory of a step grow with it",
        minimum=1,
        text_only=NO_PROMPT,
    )
    overlong_prompts: str = option(
        "filter",
        "Prompts of more than max_prompt_length tokens: `filter` drops them, `cut` keeps their "
        "last tokens. Both are counted in metrics.",
        why="a cut prompt is a different question",
        choices=("filter", "cut"),
        text_only=NO_PROMPT,
    )
    heldout_share: float = option(
        0.05,
        "Share of the questions in train_files to hold out, chosen by a hash; not read with "
        "val_files.",
        why="370 of 7,500 questions give the accuracy to within 5 points",
        minimum=0,
        maximum=0.9,
        text_only=NO_FILES,
    )
    num_loader_workers: int = option(
        0,
        "Processes per rank that read and tokenize prompts ahead; 0: read rows on demand.",
        why="a step's rows take milliseconds, starting a process seconds; four pay off from "
        "100,000 prompts on",
        minimum=0,
        text_only=NO_FILES,
    )
    seed: int = option(
        0,
        "Fixes the order of tasks and their start states.",
        why="configs/train.yaml sets it to trainer.seed",
        minimum=0,
    )
