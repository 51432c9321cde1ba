"""Keys of the environment and its servers.

Keys that an environment does not take stay null; `kwargs` holds arguments without a key here.
"""

from dataclasses import dataclass, field
from typing import Any

from envs.deadlines import SHORTEST_DEADLINE_S
from siirl.errors import ConfigError
from siirl.params.build import as_text
from siirl.params.fields import described, option

POOL_KEYS = (
    "name",
    "num_servers",
    "envs_per_server",
    "deadline_s",
    "max_replays",
    "max_failed_share",
    "played_by",
    "kwargs",
)
RENDER_QUALITIES = ("fast", "full")
# pixels; more is a typing error that would take all memory
LARGEST_PICTURE = 2048


@dataclass
class EnvArguments:
    """The environment and its servers."""

    name: str = option(
        "metaworld",
        "Name in envs.registry.ENVS, or `module:Class` of your own.",
        why="needs packages only, no downloads",
    )
    tasks: tuple[str, ...] | None = option(
        None,
        "Tasks for training and evaluation; null, or env.suite= without env.tasks=: all tasks "
        "of the suite, or the environment's default.",
        unique=True,
        filled=True,
    )
    id: str | None = option(
        None,
        "Gymnasium id, for env=gymnasium; installed environment of the package verifiers, for "
        "env=verifiers.",
    )
    dataset: str | None = option(
        None, "Generator of reasoning-gym, for env=reasoning_gym: chain_sum, for example."
    )
    url: str | None = option(
        None, "Address of the server, for env=openenv: http://127.0.0.1:8000, for example."
    )
    suite: str | None = option(
        None,
        "Suite of tasks, for env=libero: spatial, object, goal, 10, 90, or several: spatial+goal.",
    )
    assets: str | None = option(
        None, "Meshes and textures, for env=libero: a folder, `auto` or `stand_in`.", path=True
    )
    states: str | None = option(
        None, "Initial states, for env=libero: `split` (some only for evaluation) or `all`."
    )
    isolation: str | None = option(
        None,
        "Where programs run, for env=sandbox: bubblewrap, remote, or none (unprotected).",
        choices=("bubblewrap", "remote", "none"),
    )
    num_servers: int = option(
        2, "Simulator processes, over all ranks.", why="two cores", minimum=1, maximum=100_000
    )
    envs_per_server: int = option(
        1,
        "Environments in one server.",
        why="env= sets a fitting number",
        minimum=1,
        maximum=10_000,
    )
    deadline_s: float = option(
        60.0,
        "Seconds after which a silent server is replaced.",
        why="the first reset builds a simulator",
        minimum=SHORTEST_DEADLINE_S,
    )
    max_replays: int = option(
        2,
        "Replays of an episode whose server failed, before it counts as failed.",
        why="after three failed servers, a fourth would fail too",
        minimum=0,
    )
    max_failed_share: float = option(
        0.05,
        "Largest share of a step's episodes that may fail; more stop the run.",
        why="too few to bias the data",
        minimum=0,
        maximum=1,
    )
    image_size: int | None = option(
        None,
        "Height and width of an observation's images in pixels.",
        minimum=8,
        maximum=LARGEST_PICTURE,
    )
    camera: str | None = option(None, "Camera of the observations.")
    max_episode_steps: int | None = option(
        None, "Steps after which an episode is truncated.", minimum=1
    )
    render_quality: str | None = option(
        None,
        "`fast` (no shadows, reflections, multisampling) or `full`; images differ.",
        choices=RENDER_QUALITIES,
    )
    perturb: tuple[str, ...] | None = option(
        None,
        "Perturbed factors of every episode, for env=metaworld and env=libero: camera, light, "
        "texture, object_pose, instruction, distractors. An evaluation has a column for each.",
        unique=True,
        filled=True,
    )
    perturb_strength: float | None = option(
        None, "Scale of the perturbations' ranges; null: 1.", above=0, maximum=1
    )
    played_by: tuple[int, ...] = option(
        (),
        "Agent group that plays each of the environment's agents, in their order, if these have "
        "roles: [0, 1], for example; one group may play several (docs/graphs.md).",
        minimum=0,
    )
    kwargs: dict[str, Any] = field(
        default_factory=dict,
        metadata=described("Further arguments of the environment's constructor."),
    )

    @property
    def title(self) -> str:
        """The environment's name in messages."""
        return self.id or self.name

    def constructor_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for `envs.registry.make_env(self.name, ...)`, without the pool's keys.

        Raises:
            ConfigError: An argument that is set both as a key of the group and in `kwargs`,
                perturbations of an environment that has none, or a strength without them.
        """
        self._check_perturbations()
        given = {
            key: value
            for key, value in vars(self).items()
            if key not in POOL_KEYS and value is not None
        }
        for name in given.keys() & self.kwargs.keys():
            raise ConfigError(
                f"env.{name}={as_text(given[name])} and "
                f"env.kwargs.{name}={as_text(self.kwargs[name])} set the same argument of the "
                f"environment: set env.{name}, and remove it from env.kwargs."
            )
        return given | self.kwargs

    def _check_perturbations(self) -> None:
        elsewhere = {
            # gymnasium.make accepts any key
            "gymnasium": "env=gymnasium and its presets have none of siirl's perturbations; leave "
            "it out.",
            "openenv": "the server makes the environment of env=openenv; set it there (siirl serve "
            "env=… env.perturb=…), and leave it out here.",
        }
        if self.perturb is not None and self.name in elsewhere:
            raise ConfigError(
                f"env.perturb=[{','.join(self.perturb)}] is for env=metaworld and env=libero: "
                f"{elsewhere[self.name]}"
            )
        if self.perturb is None and self.perturb_strength is not None:
            raise ConfigError(
                f"env.perturb_strength={self.perturb_strength:g} is read with env.perturb, but it "
                "is null: name factors such as env.perturb=[camera], or leave it out."
            )
