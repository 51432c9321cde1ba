"""Keys of the reward."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.deadlines import SHORTEST_DEADLINE_S
from siirl.errors import ConfigError, UnknownNameError
from siirl.files.paths import usable_path, why_no_file
from siirl.params.fields import option
from siirl.params.references import check_reference, is_reference
from vjepa.reward_settings import TrajectoryRewardConfig

REWARDS = ("success", "return", "srpo", "srpo_released", "video_value", "oracle", "model")
ENCODER_DEVICES = ("rank", "cpu")
VIDEO_REWARDS = ("srpo", "srpo_released", "video_value")
TEXT_REWARDS = ("success", "return", "model")
"""Built-in rewards of text."""
MANAGERS = ("naive", "parallel", "dapo")
OWN_REWARD = "name a trajectory reward by reward.name=module:name"
PART_KEYS = ("name", "path", "weight", "data_sources", "batched")


def _of_vjepa(name: str) -> Any:
    """Option with default, help, reason and bounds of field `name` of TrajectoryRewardConfig."""
    setting = next(
        field for field in dataclasses.fields(TrajectoryRewardConfig) if field.name == name
    )
    return option(setting.default, **setting.metadata)


@dataclass
class RewardArguments:
    """The trajectory reward; see `vjepa.reward` for srpo, `vjepa.released_reward` for
    srpo_released, `vjepa.success_value` for video_value.
    """

    name: str = option(
        "success",
        "success (0/1), return (sum of rewards), srpo (distance of the video to successes), "
        "srpo_released (as siiRL published it, for comparison), video_value (how successes end, "
        "learned from the run's own episodes), oracle (true distance, for comparison), model "
        "(reward_model.path, for text), or `module:name` of a manager factory.",
        why="pipeline=embodied_srpo sets srpo",
    )
    alpha: float = _of_vjepa("alpha")
    encoder: str | None = option(
        "tiny",
        "Video encoder: tiny (shipped), a V-JEPA 2 folder or file, a hub id; null: none, for "
        "your own reward without videos.",
        why="runs without a download",
        path=True,
    )
    encoder_device: str = option(
        "rank",
        "Where the encoder computes: rank (on the rank's GPU, between rollout and update; "
        "otherwise its weights stay in host memory), cpu.",
        why="on a CPU, ViT-g takes 8 minutes per clip; kept on the GPU while idle, it would hold 2 "
        "GB",
        choices=ENCODER_DEVICES,
    )
    encoder_dtype: str | None = option(
        None,
        "Type of its weights and passes; null: bfloat16 on a GPU, float32 on a CPU.",
        why="V-JEPA 2's own evaluations run in bfloat16",
        choices=("float32", "bfloat16"),
    )
    encoder_batch_size: int | None = option(
        None,
        "Clips of one forward pass, of any episodes; null: as many as have 8192 tokens.",
        why="a clip of 64 frames of 256 pixels, enough work for a GPU; 32 clips of the shipped "
        "encoder",
        minimum=1,
    )
    frame_every: int = option(
        8,
        "Environment steps between two frames for the encoder.",
        why="chunk boundaries need no extra image",
        minimum=1,
    )
    success_bank_size: int = _of_vjepa("success_bank_size")
    failure_window: int = _of_vjepa("failure_window")
    min_failure_window: int = _of_vjepa("min_failure_window")
    dbscan_min_samples: int = _of_vjepa("dbscan_min_samples")
    dbscan_eps_scale: float = _of_vjepa("dbscan_eps_scale")
    demonstrations: str | None = option(
        None,
        "Clips that count as successes from the start: a file of siirl warm-start --clips, or a "
        "LeRobot data set (a folder, or hf://owner/name).",
        why="only the run's own successes count",
        path=True,
    )
    functions: tuple[dict[str, Any], ...] = option(
        (),
        "Parts of a text reward, summed; they replace `name`. Each is a mapping: name (success, "
        "return, model, module:name, or with path a function of that file), weight (1), "
        "data_sources (all), batched (false: one call per sample).",
        why="the environment's own reward needs none",
        text_only=OWN_REWARD,
    )
    manager: str = option(
        "naive",
        "How reward functions run: naive (one process, one after another), parallel "
        "(num_workers processes), dapo (parallel; requires algorithm.overlong.penalty).",
        why="most functions take microseconds",
        choices=MANAGERS,
        text_only=OWN_REWARD,
    )
    num_workers: int = option(
        4,
        "Processes per rank for reward functions, with manager=parallel or dapo.",
        why="a trade-off: calls of a slow judge overlap, but each process takes memory",
        minimum=1,
        text_only=OWN_REWARD,
    )
    timeout_s: float = option(
        30.0,
        "Time limit of a reward function call in seconds; then its process is killed and the "
        "sample dropped.",
        why="enough for a judge over the network; arithmetic takes microseconds",
        minimum=SHORTEST_DEADLINE_S,
        text_only=OWN_REWARD,
    )
    max_failed_share: float = option(
        0.05,
        "Largest share of a step's samples with a failed reward, which are dropped; more stop "
        "the run.",
        why="as for env.max_failed_share: too few to bias the data",
        minimum=0,
        maximum=1,
        text_only=OWN_REWARD,
    )


@dataclass
class CustomRewardArguments:
    """A user's reward function for text: a short form of reward.functions with one entry."""

    path: str | None = option(
        None,
        "Python file that defines it; null: name is `module:name`.",
        text_only=OWN_REWARD,
        path=True,
    )
    name: str | None = option(
        None, "Its name in that file, or `module:name`.", text_only=OWN_REWARD
    )


@dataclass(frozen=True)
class RewardPart:
    """One summand of a text's reward."""

    name: str
    """One of `TEXT_REWARDS`, a function in `path`, or `module:name`."""
    path: str | None = None
    weight: float = 1.0
    data_sources: tuple[str, ...] = ()
    """Data sources whose rows it rewards; empty: all."""
    batched: bool = False
    """Whether it is called with lists of samples."""

    @property
    def is_function(self) -> bool:
        """Whether the part is a user's function."""
        return self.name not in TEXT_REWARDS

    @property
    def label(self) -> str:
        """Its name in metrics."""
        return self.name.rpartition(":")[2].replace(".", "_")


def reward_parts(reward: RewardArguments, custom: CustomRewardArguments) -> tuple[RewardPart, ...]:
    """Parts of a text reward: reward.functions and custom_reward_function, else reward.name.

    Raises:
        ConfigError: An invalid entry; files and modules must exist, but are not imported.
        UnknownNameError: An unknown key or name.
    """
    parts = [
        _part(entry, place=f"reward.functions[{number}]")
        for number, entry in enumerate(reward.functions)
    ]
    if custom.name is not None:
        parts.append(
            _part({"name": custom.name, "path": custom.path}, place="custom_reward_function")
        )
    elif custom.path is not None:
        raise ConfigError(
            f"custom_reward_function.path={custom.path} is a file: set "
            "custom_reward_function.name to a function in it."
        )
    if not parts:
        parts = [_part({"name": reward.name}, place="reward")]
    if not any(part.weight for part in parts):
        raise ConfigError(
            "All weights of reward.functions are 0, so every reward is 0: give one of them a "
            "weight."
        )
    labels = [part.label for part in parts]
    repeated = [label for label in labels if labels.count(label) > 1]
    if repeated:
        raise ConfigError(
            f"Two parts of the reward are named {repeated[0]!r}, but metrics are logged by name: "
            "rename one of the functions."
        )
    return tuple(parts)


def _part(entry: Mapping[str, Any], *, place: str) -> RewardPart:
    for key in entry:
        if key not in PART_KEYS:
            raise UnknownNameError.of(kind=f"key in {place}", name=str(key), known=PART_KEYS)
    name = entry.get("name")
    path = entry.get("path")
    weight = entry.get("weight", 1.0)
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{place}.name={name!r} must name a function, or one of {', '.join(TEXT_REWARDS)}."
        )
    if (
        isinstance(weight, bool)
        or not isinstance(weight, int | float)
        or not abs(weight) < float("inf")
    ):
        raise ConfigError(f"{place}.weight={weight!r} must be a finite number.")
    batched = entry.get("batched", False)
    if not isinstance(batched, bool):
        raise ConfigError(f"{place}.batched={batched!r} must be true or false.")
    part = RewardPart(
        name=name,
        path=None if path is None else str(path),
        weight=float(weight),
        data_sources=_data_sources(entry.get("data_sources"), place=place),
        batched=batched,
    )
    _check_place(part, place=place)
    return part


def _data_sources(given: Any, *, place: str) -> tuple[str, ...]:
    """Names of data sources; empty if the key is left out or null."""
    names = [] if given is None else given
    if isinstance(given, str):
        names = [given]
    if not isinstance(names, list | tuple) or any(
        not isinstance(name, str) or not name for name in names
    ):
        raise ConfigError(
            f"{place}.data_sources={given!r} must be a list of names, such as [openai/gsm8k]."
        )
    if given is not None and not names:
        raise ConfigError(
            f"{place}.data_sources=[] serves no row: name data sources, or leave it out for all."
        )
    return tuple(names)


def _check_place(part: RewardPart, *, place: str) -> None:
    if part.path is not None:
        file = usable_path(part.path, key=f"{place}.path")
        if not file.is_file():
            raise ConfigError(
                f"{place}.path={part.path}: {why_no_file(file)}. Give the Python file that "
                f"defines {part.name!r}."
            )
        if not part.name.isidentifier():
            raise ConfigError(
                f"{place}.name={part.name} is not the name of a function in {part.path}."
            )
    elif is_reference(part.name):
        check_reference(part.name, place=f"{place}.name")
    elif part.name not in TEXT_REWARDS:
        raise UnknownNameError.of(
            kind=f"reward of text ({place}.name)",
            name=part.name,
            known=[*TEXT_REWARDS, "module:name"],
        )
