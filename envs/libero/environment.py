"""LIBERO's tasks as language-conditioned environments: two camera images, proprioception and instruction in, motion out.

One instance serves any of its tasks in any order: a simulator is built when its task is first asked for (a few seconds) and reused between
episodes. An episode starts from one of the benchmark's 50 initial states after its ten settling steps, and ends at success or at the
published step limit. The reward is 1 at success and 0 before. Poses of objects are in no observation.

An action is the benchmark's: seven numbers in [-1, 1], for the gripper's motion in x, y, z (1 asks for 5 cm), its rotation about x, y, z
(1 asks for 0.5 rad), and the fingers, +1 to close and -1 to open. Nothing else is accepted here; `envs.libero.openvla` converts what
published checkpoints put out.

An instance belongs to one thread, because its OpenGL context does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.arguments import checked_action, checked_seed, nearest, read_options
from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Environment, EnvSpec, FrameBuffer, FrameRequest, Info, StepResult
from envs.libero.assets import AUTO, LABEL, find_assets
from envs.libero.initial_states import States, state_number
from envs.libero.rendering import CAMERAS, SceneCameras
from envs.libero.suites import LiberoTask, choose_tasks
from envs.offscreen import RenderQuality, make_context

if TYPE_CHECKING:  # imports MuJoCo, which looks for OpenGL at once
    from envs.libero.simulator import TaskSimulator

DEFAULT_SUITE = "object"  # one scene, one skill: the first thing to learn
ACTION_SIZE = 7
PROPRIOCEPTION_SIZE = 8
INIT_STATE = "init_state"
CAMERA_SETS = {"both": tuple(CAMERAS), **{name: (name,) for name in CAMERAS}}


class LiberoEnv(Environment):
    """Tasks of one or more LIBERO suites."""

    def __init__(
        self,
        suite: str = DEFAULT_SUITE,
        tasks: Sequence[str | int] | None = None,
        assets: str | Path = AUTO,
        image_size: int = 128,
        camera: str = "both",
        max_episode_steps: int | None = None,
        states: States = "split",
        render_quality: RenderQuality = "fast",
    ) -> None:
        """Cheap, but for a download of assets: simulators and the OpenGL context are made when they are first needed.

        Args:
            suite: `spatial`, `object`, `goal`, `10` (or `long`), `90`, or several of them: `spatial+goal`.
            tasks: Tasks by name or by number in the suite (`spatial/3` where there are several suites); all tasks by default.
            assets: A folder of LIBERO's assets, `stand_in`, or `auto` (see `envs.libero.assets`).
            image_size: Height and width of the observation's images in pixels.
            camera: `both`, `agentview` or `wrist`.
            max_episode_steps: Steps after which an episode is truncated; by default what the published protocol gives each suite.
            states: `split` keeps every fifth initial state for evaluation (seeds below 1,000,000); `all` is the published protocol:
                seed k starts from state k modulo 50.
            render_quality: `fast` (see `envs.offscreen`) or `full`. They look different: train and evaluate with the same.

        Raises:
            ValueError: An unknown name, a task given twice, a number out of range, or incomplete assets.
            RuntimeError: LIBERO is not installed.
        """
        chosen = choose_tasks(suite, tasks)
        if image_size < 8:
            raise ValueError(f"image_size must be at least 8 pixels, got {image_size}.")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}.")
        for kind, value, known in (
            ("camera", camera, tuple(CAMERA_SETS)),
            ("states", states, get_args(States)),
            ("render_quality", render_quality, get_args(RenderQuality)),
        ):
            if value not in known:
                raise ValueError(f"Unknown {kind} {value!r}.{nearest(value, known)} Known: {', '.join(known)}.")
        self._tasks = {task.name: task for task in chosen}
        self._limit, self._states, self._quality = max_episode_steps, states, render_quality
        self._image_size, self._cameras = image_size, CAMERA_SETS[camera]
        self._assets = find_assets(assets)
        self.spec = self._make_spec()
        self._simulators: dict[str, TaskSimulator] = {}
        self._renderers: dict[str, SceneCameras] = {}
        self._gl: Any = None
        self._task: str | None = None
        self._state_number = 0
        self._streams: dict[str, FrameRequest] = {}
        self._step, self._ended = 0, True

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Info]:
        """See `Environment.reset`; options are `task`, `frames` and `init_state`, the number of an initial state.

        Without `init_state` the seed chooses the state (see `states` of the constructor); nothing else in an episode is random.
        """
        task, streams = read_options(options, spec=self.spec, further=(INIT_STATE,))
        seed = checked_seed(seed)
        self._ended = True
        simulator = self._simulator(task)
        number = (options or {}).get(INIT_STATE)
        if number is None:
            seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
            number = state_number(seed, count=len(simulator.states), states=self._states)
        simulator.reset(_checked_state(number))
        self._task, self._state_number, self._streams, self._step, self._ended = task, int(number), streams, 0, False
        images, frames = self._images(), FrameBuffer()
        self._add_frames(frames, images)
        return self._observation(images), self._info(success=False, frames=frames)

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`."""
        return await self.step_chunk([action])

    async def step_chunk(self, actions: Sequence[Any]) -> StepResult:
        """See `Environment.step_chunk`; the observation is rendered once, after the last action."""
        if len(actions) == 0:
            raise ValueError("step_chunk needs at least one action.")
        checked = [checked_action(action, space=self.spec.action_space) for action in actions]
        if self._task is None or self._ended:
            raise RuntimeError("The episode has ended or was never started: call reset before step.")
        simulator, frames = self._simulators[self._task], FrameBuffer()
        limit = self._step_limit(self._tasks[self._task])
        for executed, action in enumerate(checked, start=1):
            success = simulator.step(action)
            self._step += 1
            self._ended = success or self._step == limit
            if self._ended or executed == len(checked):
                break
            self._add_frames(frames, None)
        images = self._images()
        self._add_frames(frames, images)
        info = self._info(success=success, frames=frames) | {"executed": executed}
        return self._observation(images), float(success), success, self._ended and not success, info

    def render(self) -> NDArray[np.uint8]:
        """The first camera's image now, uint8 [image_size, image_size, 3]."""
        if self._task is None:
            raise RuntimeError("There is nothing to render: call reset first.")
        return self._image(self._image_size, self._cameras[0])

    async def close(self) -> None:
        """Free renderers and simulators; a later reset builds them anew."""
        for renderer in self._renderers.values():
            renderer.close()
        if self._gl is not None:
            self._gl.free()
        self._renderers, self._simulators, self._gl = {}, {}, None
        self._task, self._ended = None, True

    @property
    def simulator(self) -> "TaskSimulator":
        """The running episode's simulator, with true poses: for experts and oracles, never for a policy."""
        if self._task is None:
            raise RuntimeError("There is no episode: call reset first.")
        return self._simulators[self._task]

    @property
    def steps(self) -> int:
        """Environment steps of the running episode."""
        return self._step

    def _make_spec(self) -> EnvSpec:
        shape = (len(self._cameras), self._image_size, self._image_size, 3)
        instructions = [task.instruction for task in self._tasks.values()]
        words = gymnasium.spaces.Text(max(map(len, instructions)), charset=frozenset("".join(instructions)))
        observation_space = gymnasium.spaces.Dict(
            {
                IMAGES: gymnasium.spaces.Box(0, 255, shape, np.uint8),
                PROPRIOCEPTION: gymnasium.spaces.Box(-np.inf, np.inf, (PROPRIOCEPTION_SIZE,), np.float32),
                INSTRUCTION: words,
            }
        )
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        name = f"libero ({LABEL} assets)" if self._assets.stand_in else "libero"
        limit = max(self._step_limit(task) for task in self._tasks.values())
        return EnvSpec(name, tuple(self._tasks), observation_space, action_space, limit)

    def _step_limit(self, task: LiberoTask) -> int:
        return task.step_limit if self._limit is None else self._limit

    def _simulator(self, task: str) -> "TaskSimulator":
        if task not in self._simulators:
            self._simulators[task] = _make_simulator(self._tasks[task], self._assets)
        return self._simulators[task]

    def _images(self) -> dict[str, NDArray[np.uint8]]:
        return {camera: self._image(self._image_size, camera) for camera in self._cameras}

    def _image(self, size: int, camera: str) -> NDArray[np.uint8]:
        assert self._task is not None
        simulator = self._simulators[self._task]
        if self._task not in self._renderers:
            self._gl = self._gl or make_context(size)
            self._renderers[self._task] = SceneCameras(model=simulator.model, context=self._gl, quality=self._quality, size=size)
        return self._renderers[self._task].render(simulator.data, size, camera)

    def _add_frames(self, frames: FrameBuffer, images: dict[str, NDArray[np.uint8]] | None) -> None:
        """Frames of the first camera that are due after this step; the observation's images serve streams of their size."""
        camera = self._cameras[0]
        rendered = {} if images is None else {self._image_size: images[camera]}
        for stream, request in self._streams.items():
            if self._ended or self._step % request.every == 0:
                if request.size not in rendered:
                    rendered[request.size] = self._image(request.size, camera)
                frames.add(stream, rendered[request.size], self._step)

    def _observation(self, images: dict[str, NDArray[np.uint8]]) -> dict[str, Any]:
        assert self._task is not None
        return {
            IMAGES: np.stack([images[camera] for camera in self._cameras]),
            PROPRIOCEPTION: self._simulators[self._task].proprioception,
            INSTRUCTION: self._tasks[self._task].instruction,
        }

    def _info(self, *, success: bool, frames: FrameBuffer) -> Info:
        assert self._task is not None
        suite = self._tasks[self._task].suite
        info: Info = {"task": self._task, "suite": suite, INIT_STATE: self._state_number, "success": success, "assets": self._assets.label}
        return info | {"frames": frames.take()} if self._streams else info


def _make_simulator(task: LiberoTask, assets: Any) -> "TaskSimulator":
    from envs.libero.folders import import_libero

    import_libero()  # before MuJoCo is imported: it chooses the OpenGL library
    from envs.libero.physics import check_physics_once
    from envs.libero.simulator import TaskSimulator

    simulator = TaskSimulator(task, assets)
    check_physics_once(simulator)
    return simulator


def _checked_state(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise ValueError(f"{INIT_STATE} must be the number of an initial state, got {number!r}.")
    return int(number)
