"""README.md of a policy on the Hugging Face Hub: results with intervals, command, versions, data.

The metadata at its head follows the Hub's specification (huggingface/hub-docs, modelcard.md). A
card contains only what its run recorded: results come from metrics.jsonl up to the checkpoint's
step, the command and versions from origin.json. Left out: prose about intended use, which the owner
adds.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from siirl.dag_worker.manifest import MANIFEST
from siirl.errors import ConfigError
from siirl.files.documents import read_object
from siirl.files.hub_place import DATASET, hub_place, is_hub_id
from siirl.files.paths import find
from siirl.files.yaml_files import UNREADABLE, describe_yaml_error, read_plain
from siirl.models.control_policy import CONTROL_POLICY
from siirl.params.config_groups import policy_choice
from siirl.params.policies import POLICIES, VISION_MODEL_TYPES
from siirl.reporting.charts import KINDS_OF_EVALUATION
from siirl.reporting.graph_drawing import read_graph, read_graph_id
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE
from siirl.reporting.origin import read_origin
from siirl.reporting.statistics import SuccessInterval, evaluations

Row = Mapping[str, Any]
_SHIPPED = ("siirl", "envs", "pipelines")
"""Packages of this project."""
_CODE = (".py", ".yaml", ".yml")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:name


@dataclass(frozen=True)
class Training:
    """Records of the run that made a policy."""

    config: Mapping[str, Any]
    step: int
    command: str
    versions: Mapping[str, str]
    rows: Sequence[Row]
    """Rows of metrics.jsonl up to the checkpoint's step."""
    graph: str | None
    """Name of the graph that ran; None if the run did not record it."""
    functions: Collection[str]
    """Functions of its nodes, as module:name."""

    def key(self, name: str) -> Any:
        """Value of a dotted configuration key; None if the run's configuration lacks it."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    @property
    def own_graph(self) -> str | None:
        """File or function of the owner's graph; None for a shipped pipeline."""
        return self.key("dag.custom_pipeline_fn") or self.key("dag.workflow_file")

    @property
    def base(self) -> str | None:
        """`actor_rollout_ref.model.path`: the policy that training began from."""
        return self.key("actor_rollout_ref.model.path")

    @property
    def base_folder(self) -> Path | None:
        """Folder of `base`, if it is on this machine."""
        folder = None if self.base is None else find(self.base)
        return folder if folder is not None and folder.is_dir() else None


@dataclass(frozen=True)
class Card:
    """Contents of a model card."""

    name: str
    description: Mapping[str, Any]
    """config.json of the policy."""
    licence: str
    training: Training | None
    """None for a policy folder without a run."""


def is_text(description: Mapping[str, Any]) -> bool:
    """Whether transformers loads a policy with this config.json as a causal language model."""
    return description.get("model_type") not in (None, "openvla")


def read_training(config_file: Path | None, *, checkpoint: Path) -> Training | None:
    """Records of the run with this config.yaml; None without one.

    Raises:
        ConfigError: A damaged config.yaml.
        ValueError: A damaged line in metrics.jsonl.
    """
    if config_file is None:
        return None
    try:
        config = read_plain(config_file)
    except UNREADABLE as error:
        raise ConfigError(f"{config_file} is damaged: {describe_yaml_error(error)}.") from error
    run_folder = config_file.parent
    step = int(read_object(checkpoint / MANIFEST, remedy="Choose an earlier checkpoint.")["step"])
    rows = [row for row in read_rows(run_folder / METRICS_FILE) if row.get("step", 0) <= step]
    return Training(
        config=config,
        step=step,
        rows=rows,
        graph=read_graph_id(run_folder),
        functions={node["function"] for node in read_graph(run_folder)},
        **_origin(run_folder),
    )


def _origin(run_folder: Path) -> dict[str, Any]:
    return {"command": "", "versions": {}} | read_origin(run_folder)


def model_card(card: Card) -> str:
    """Markdown of the card, with its metadata."""
    head = yaml.safe_dump(_metadata(card), sort_keys=False, allow_unicode=True)
    sections = [f"---\n{head}---\n", f"# {card.name}\n", _introduction(card), _use(card)]
    if card.training is not None:
        sections += [*_results(card.training), *_made(card.training)]
    return "\n".join(sections)


def _metadata(card: Card) -> dict[str, Any]:
    training = card.training
    pipeline = training and training.key("dag.pipeline")
    environment = training and training.key("env.name")
    head: dict[str, Any] = {
        "license": card.licence,
        "library_name": "transformers" if is_text(card.description) else "siirl",
        "pipeline_tag": "text-generation" if is_text(card.description) else "robotics",
        "tags": [
            "siirl",
            "reinforcement-learning",
            *(str(word) for word in (pipeline, environment) if word),
        ],
    }
    if training is None:
        return head
    base = repository(training.base)
    if base is not None:
        head["base_model"] = base
    data = [found for name in _data_files(training) if (found := repository(name, data=True))]
    if data:
        head["datasets"] = list(dict.fromkeys(data))
    results = [
        {
            "task": {"type": head["pipeline_tag"]},
            "dataset": {"type": str(environment), "name": f"{environment}: {task}"},
            "metrics": [{"type": "success_rate", "value": round(success.rate, 4)}],
        }
        for task, success in _last(training, kind="").items()
        if success.episodes
    ]
    if results:
        head["model-index"] = [{"name": card.name, "results": results}]
    return head


def repository(text: str | None, *, data: bool = False) -> str | None:
    """`owner/name` of a value that names a repository on the Hub; None for a local path."""
    if text is None:
        return None
    place = hub_place(text, place="config.yaml", kind=DATASET if data else "model")
    if place is not None:
        return place.repository
    return text if is_hub_id(text) and not find(text).exists() else None


def _introduction(card: Card) -> str:
    if card.training is None:
        return f"A policy of [siirl](https://pypi.org/project/siirl/): {_kind(card)}.\n"
    training = card.training
    start = f", beginning from `{training.base}`" if training.base else ", from random weights"
    notices = dict.fromkeys(str(row["notice"]) for row in training.rows if "notice" in row)
    return "\n\n".join(
        [
            f"{_kind(card)}, trained by reinforcement learning: {_graph(training)} on environment "
            f"`{training.key('env.name')}`, step {training.step}{start}.",
            *notices,
            "",
        ]
    )


def _graph(training: Training) -> str:
    """Description of the graph: a shipped pipeline, or the owner's graph with its file or
    function.
    """
    pipeline, own = training.key("dag.pipeline"), training.own_graph
    if own is None:
        return f"pipeline `{pipeline}`"
    name = f"own graph `{training.graph}` of" if training.graph else "own graph"
    keys = f" with the keys of pipeline `{pipeline}`" if pipeline else ""
    return f"{name} `{own}`{keys}"


def _kind(card: Card) -> str:
    if is_text(card.description):
        names = card.description.get("architectures") or [card.description["model_type"]]
        return f"A causal language model (`{names[0]}`)"
    names = (card.description.get(key) for key in ("model_type", "type", "policy"))
    kind = next((name for name in names if name), "policy")
    if kind == CONTROL_POLICY:
        return f"A policy for control tasks (`{kind}`)"
    return f"A vision-language-action policy (`{kind}`)"


def _use(card: Card) -> str:
    if is_text(card.description):
        sees = card.description["model_type"] in VISION_MODEL_TYPES
        model = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
        return (
            "```python\n"
            f"from transformers import {model}, AutoTokenizer\n\n"
            f'model = {model}.from_pretrained("FOLDER_OR_ID")\n'
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER_OR_ID")\n'
            "```\n"
        )
    return (
        "```bash\n"
        f"siirl evaluate checkpoint=FOLDER{_environment(card.training)}\n"
        f"siirl train{_pipeline(card.training)} actor_rollout_ref.model.path=FOLDER"
        f"{_policy(card)}{_environment(card.training)}\n"
        "```\n"
    )


def _environment(training: Training | None) -> str:
    """Words of the run's environment, for a command."""
    if training is None:
        return ""
    words = (("env", training.key("env.name")), ("env.id", training.key("env.id")))
    return "".join(f" {key}={value}" for key, value in words if value)


def _pipeline(training: Training | None) -> str:
    """The word of the run's pipeline; empty for the owner's graph."""
    if training is None or training.own_graph or not training.key("dag.pipeline"):
        return ""
    return f" pipeline={training.key('dag.pipeline')}"


def _policy(card: Card) -> str:
    """The word that chooses the policy; empty if config.json names none of siirl's."""
    name = card.description.get("policy")
    return f" {policy_choice(name)}" if name in POLICIES else ""


def _results(training: Training) -> Iterator[str]:
    tables: list[str] = []
    for kind, actions in KINDS_OF_EVALUATION:
        tables += _table(training, kind, actions)
    if not tables:
        return
    episodes = training.key("trainer.val_episodes")
    seed = training.key("trainer.val_seed_offset")
    temperature = training.key("actor_rollout_ref.rollout.temperature")
    yield "## Results\n"
    yield (
        f"Success on held-out episodes, at most {episodes} of each task, seeds from {seed} on, "
        f"temperature {temperature}, with 95 % intervals (Wilson).\n"
    )
    yield from tables


def _table(training: Training, kind: str, actions: str) -> Iterator[str]:
    rated = [
        (row["step"], found) for row in training.rows if (found := evaluations(row, kind=kind))
    ]
    if not rated:
        return
    ends = [rated[0], rated[-1]] if len(rated) > 1 else rated
    yield f"{actions[0].upper()}{actions[1:]}:\n"
    steps = " | ".join(f"step {step}" for step, _ in ends)
    lines = [f"| task | {steps} |", f"| --- |{' --- |' * len(ends)}"]
    for task in ends[-1][1]:
        cells = " | ".join(str(found.get(task, "")) for _, found in ends)
        lines.append(f"| {task} | {cells} |")
    yield "\n".join([*lines, ""])


def _last(training: Training, *, kind: str) -> dict[str, SuccessInterval]:
    """The last evaluation of every task."""
    rated = [found for row in training.rows if (found := evaluations(row, kind=kind))]
    return rated[-1] if rated else {}


def _made(training: Training) -> Iterator[str]:
    yield "## How it was made\n"
    if training.command:
        yield f"```bash\n{training.command}\n```\n"
        needed = ", ".join(f"`{name}`" for name in _own_code(training))
        if needed:
            yield f"The command needs its owner's {needed}, which are not in this folder.\n"
    yield "`siirl_config.yaml` has every setting.\n"
    data = _data_files(training)
    yield "Data: " + (
        ", ".join(f"`{name}`" for name in data) + ".\n"
        if data
        else f"tasks of the environment `{training.key('env.name')}`"
        f"{_tasks(training)}, seed {training.key('trainer.seed')}.\n"
    )
    if training.versions:
        named = ", ".join(f"{name} {version}" for name, version in training.versions.items())
        yield f"Versions: {named}.\n"


def _own_code(training: Training) -> list[str]:
    """Files and modules of the run's owner that its configuration and graph name."""
    named = {*_texts(training.config), *training.functions}
    modules = {text.partition(":")[0] for text in named if _REFERENCE.fullmatch(text)}
    modules |= set(training.key("user_modules") or ())
    foreign = {name for name in modules if name.partition(".")[0] not in _SHIPPED}
    files = {text for text in named if text.endswith(_CODE)}
    return [*sorted(files), *(f"module {name}" for name in sorted(foreign))]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _tasks(training: Training) -> str:
    tasks = training.key("env.tasks")
    return f" ({', '.join(map(str, tasks))})" if tasks else ""


def _data_files(training: Training) -> list[str]:
    return [str(name) for name in training.key("data.train_files") or ()]
