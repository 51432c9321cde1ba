"""Meta-World's MuJoCo manipulation tasks as language-conditioned environments.

One instance runs its tasks in any order. A task's simulator is built at the first request (about a
second with its renderer) and reused between episodes. The benchmark's success flag ends the episode
at any step. The reward is 1 at success and 0 before. The camera sees Meta-World's goal markers, but
no observation has the poses of objects and goals.

Left out: Meta-World's shaped rewards, and its goal-conditioned observation vector (`state` has it,
for experts and oracles only). An instance belongs to one thread, because its OpenGL context does.
"""

import importlib.util
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.arguments import checked_choice, checked_seed, read_options
from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, EnvSpec, Info, SimulatorMemory
from envs.metaworld.suite import FIXED, INSTRUCTIONS, VERSION_SUFFIX, task_name
from envs.offscreen import RenderQuality, SceneRenderer, choose_backend
from envs.perturbations import OBJECT_POSE, OPTION, Perturbation
from envs.perturbed_look import Look
from envs.simulator_episode import SimulatorEnv

if TYPE_CHECKING:  # these import MuJoCo, which looks for OpenGL at once
    from envs.metaworld.metaworld_simulator import MetaWorldSimulator

# Without dependencies, because its metadata pins MuJoCo 3.3.0 and the project's numbers come from
# 3.8.1.
INSTALL = "python -m pip install --no-deps metaworld==3.1.1"
INSTALL_MUJOCO = "python -m pip install mujoco==3.8.1"
DEFAULT_TASKS = (
    "drawer-open",
    "button-press",
    "button-press-topdown",
)  # as configs/env/metaworld.yaml
# Gripper displacement in x, y, z (1 is a centimetre per step) and finger effort (1 closes).
ACTION_SIZE = 4
METAWORLD_LIMIT = 500  # Meta-World refuses further steps
# Of four tasks, November 2026: 0.96 GB with one environment per server, 1.85 GB with six.
MEMORY = SimulatorMemory(server=230e6, scene=60e6, simulator=25e6)
CAMERAS = (
    "table",
    "topview",
    "corner",
    "corner2",
    "corner3",
    "corner4",
    "behindGripper",
    "gripperPOV",
)


@dataclass(frozen=True)
class TableCamera:
    """Our camera, close to the table and in front of the objects.

    Chosen from images of all tasks at reset, halfway and at success. Meta-World's cameras show a
    handle smaller than a pixel of a 64x64 image, or from behind.
    """

    lookat: tuple[float, float, float] = (0.0, 0.7, 0.15)
    distance: float = 0.95
    azimuth: float = 140.0
    elevation: float = -30.0


class MetaWorldEnv(SimulatorEnv["MetaWorldSimulator"]):
    """Meta-World tasks chosen by name."""

    def __init__(
        self,
        tasks: Sequence[str] = DEFAULT_TASKS,
        image_size: int = 64,
        camera: str = "table",
        max_episode_steps: int = 120,
        render_quality: RenderQuality = "fast",
        perturb: Sequence[str] = (),
        perturb_strength: float = 1.0,
    ) -> None:
        """Check the arguments; simulators and the OpenGL context are made at first use.

        Args:
            tasks: Names of Meta-World's tasks (`envs.metaworld.suite.INSTRUCTIONS`), with or
                without `-v3`.
            image_size: Height and width of the observation's image in pixels.
            camera: `table` (ours, see `TableCamera`) or one of Meta-World's.
            max_episode_steps: Step limit of an episode; at most Meta-World's 500.
            render_quality: `fast` (see `envs.offscreen`) or `full`, which takes fifty times as long
                on a CPU. They look different: train and evaluate with the same.
            perturb: Factors in which episodes differ from the standard ones (`envs.perturbations`).
                `object_pose` moves the object, and in most tasks its goal with it, by up to 5 cm
                along the axes (of x and y) in which the task fixes neither.
            perturb_strength: Scale of the perturbations, in (0, 1].

        Raises:
            ValueError: An unknown name, a task given twice, a number out of range, or `object_pose`
                with a task whose object cannot be displaced.
            RuntimeError: Meta-World or MuJoCo is not installed; checked without importing them.
        """
        _check_installed()
        if isinstance(tasks, str) or not tasks:
            raise ValueError(
                f"tasks must be a list of one or more Meta-World tasks, got {tasks!r}."
            )
        names = tuple(task_name(name) for name in tasks)
        if len(set(names)) < len(names):
            raise ValueError(f"tasks has a task twice: {', '.join(tasks)}.")
        if not 1 <= max_episode_steps <= METAWORLD_LIMIT:
            raise ValueError(
                f"max_episode_steps must lie in [1, {METAWORLD_LIMIT}] (Meta-World's limit), got "
                f"{max_episode_steps}."
            )
        checked_choice("camera", camera, CAMERAS)
        checked_choice("render_quality", render_quality, get_args(RenderQuality))
        super().__init__(
            image_size=image_size,
            cameras=(camera,),
            perturb=perturb,
            perturb_strength=perturb_strength,
        )
        _check_displaceable(names, factors=self._factors)
        self.spec = self._make_spec(
            tasks=names, image_size=image_size, max_episode_steps=max_episode_steps
        )
        self._quality = render_quality

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Info]:
        """See `Environment.reset`; options: `task`, `frames`, `perturb`.

        Seed and task determine the start.
        """
        task, streams = read_options(self._canonical(options), spec=self.spec, further=(OPTION,))
        seed = checked_seed(seed)
        self._ended = True
        seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        self._perturbed(options, seed=seed, task=task)
        return self._begin(task, streams, partial(self._simulator(task).reset, seed=seed))

    @property
    def state(self) -> NDArray[np.float64]:
        """Return Meta-World's observation [39] with true poses, for experts and oracles only."""
        return self._running().state

    def _make_spec(
        self, *, tasks: tuple[str, ...], image_size: int, max_episode_steps: int
    ) -> EnvSpec:
        observation_space = gymnasium.spaces.Dict(
            {
                IMAGES: gymnasium.spaces.Box(0, 255, (1, image_size, image_size, 3), np.uint8),
                PROPRIOCEPTION: gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
                INSTRUCTION: self._words(list(INSTRUCTIONS.values())),
            }
        )
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        return EnvSpec(
            "metaworld",
            tasks,
            observation_space,
            action_space,
            max_episode_steps,
            tasks_with_distance=tasks,
            needs_opengl=True,
            notice=self._notice,
            memory=MEMORY,
            expert="envs.metaworld.metaworld_env:expert",
        )

    def _canonical(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        options = dict(options or {})
        if isinstance(options.get("task"), str):
            options["task"] = options["task"].removesuffix(VERSION_SUFFIX)
        return options

    def _step_limit(self, task: str) -> int:
        return self.spec.max_episode_steps

    def _instruction(self, task: str) -> str:
        return INSTRUCTIONS[task]

    def _facts(self, task: str) -> Info:
        return {"oracle_distance": self._simulators[task].oracle_distance}

    def _make_simulator(self, task: str) -> "MetaWorldSimulator":
        choose_backend()  # before MuJoCo is imported, which reads MUJOCO_GL then
        from envs.metaworld.metaworld_simulator import MetaWorldSimulator

        return MetaWorldSimulator(task)

    def _scene(self, task: str) -> Hashable:
        return type(self), task, self._cameras, self._quality

    def _make_renderer(self, simulator: "MetaWorldSimulator", context: Any) -> "_OneCamera":
        return _OneCamera(
            simulator.model,
            context,
            name=self._cameras[0],
            quality=self._quality,
            size=self._image_size,
        )


class _OneCamera:
    """A scene with the environment's one camera."""

    def __init__(
        self, model: Any, context: Any, *, name: str, quality: RenderQuality, size: int
    ) -> None:
        self._renderer = SceneRenderer(
            model=model, context=context, camera=_camera(model, name), quality=quality, size=size
        )
        self.close = self._renderer.close

    def look(
        self, simulator: "MetaWorldSimulator", camera: str, perturbation: Perturbation
    ) -> Look:
        """See `Renderer.look`."""
        return self._renderer.draw_look(perturbation, simulator.model, simulator.data)

    def render(
        self, simulator: "MetaWorldSimulator", size: int, camera: str, look: Look
    ) -> NDArray[np.uint8]:
        """Render the simulator's scene: uint8 [size, size, 3]."""
        return self._renderer.render(simulator.data, size, look)


def expert(task: str) -> Callable[[MetaWorldEnv], NDArray[np.float32]]:
    """Return Meta-World's scripted expert for `task`: environment to action, float32 [4] in [-1,
    1].

    docs/environments.md has its success and steps over 30 seeds. It reads `env.state`, which no
    policy may.
    """
    name = task_name(task)
    choose_backend()
    from metaworld.policies import ENV_POLICY_MAP

    warnings.filterwarnings(
        "ignore", message=r"Constant\(s\) may be too high", category=UserWarning
    )  # we clip, as Meta-World does
    scripted: Any = ENV_POLICY_MAP[name + VERSION_SUFFIX]
    instance = scripted()

    def policy(env: MetaWorldEnv) -> NDArray[np.float32]:
        return np.clip(instance.get_action(env.state), -1.0, 1.0).astype(np.float32)

    return policy


def _check_displaceable(tasks: Sequence[str], *, factors: Sequence[str]) -> None:
    """Refuse `object_pose` for tasks in which it would change nothing."""
    fixed = [task for task in tasks if task in FIXED]
    if OBJECT_POSE in factors and fixed:
        raise ValueError(
            f"perturb has {OBJECT_POSE!r}, but Meta-World fixes the object's or the goal's place "
            f"in x and y in {', '.join(fixed)}, so they cannot be displaced together: leave "
            f"{OBJECT_POSE} out of perturb, or choose other tasks."
        )


def _check_installed() -> None:
    for package, command in (("metaworld", INSTALL), ("mujoco", INSTALL_MUJOCO)):
        if importlib.util.find_spec(package) is None:
            raise RuntimeError(
                f"env=metaworld needs the package {package}, which is not installed. Type: "
                f"{command}"
            )


def _camera(model: Any, name: str) -> Any:
    import mujoco

    camera = mujoco.MjvCamera()
    if name == "table":
        table = TableCamera()
        camera.type, camera.lookat[:] = mujoco.mjtCamera.mjCAMERA_FREE, table.lookat
        camera.distance = table.distance
        camera.azimuth = table.azimuth
        camera.elevation = table.elevation
    else:
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
    return camera
