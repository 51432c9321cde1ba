"""Episode logic shared by Meta-World and LIBERO: action chunks, images, frame streams, caching.

A simulator is built at the first request for its task and reused; it shares its renderer with the
thread's other environments. Images are drawn only for the observation after a chunk's last action
and for frames of streams that are due. An episode ends at the simulator's success or at the task's
step limit; the reward is 1 at success and 0 before.

Left out: tasks, starts of episodes, and cameras. An instance belongs to one thread, as its OpenGL
context does.
"""

import abc
import ctypes
import dataclasses
import functools
import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.arguments import checked_action, not_running
from envs.base import (
    IMAGES,
    INSTRUCTION,
    PROPRIOCEPTION,
    Environment,
    FrameBuffer,
    FrameRequest,
    Info,
    StepResult,
)
from envs.perturbations import (
    CAMERA,
    OBJECT_POSE,
    OPTION,
    SEEN,
    Perturbation,
    checked_factors,
    checked_strength,
)
from envs.perturbations import INSTRUCTION as REWORDED
from envs.perturbed_look import STANDARD, Look
from envs.rewording import longest_rewording, reworded
from envs.shared_renderers import Renderer, SharedRenderers, renderers_of_thread

NOT_DISPLACED = np.zeros(2)


class Simulator(Protocol):
    """One task's physics."""

    model: Any
    data: Any

    def step(self, action: NDArray[np.float32]) -> bool:
        """Apply one action; returns whether the task is solved."""

    @property
    def proprioception(self) -> NDArray[np.float32]:
        """Return the robot's own state, float32 [P]."""


AnySimulator = TypeVar("AnySimulator", bound=Simulator)


class SimulatorEnv(Environment, Generic[AnySimulator]):
    """Environment of one or more simulated tasks; subclasses define tasks and start episodes.

    Args:
        image_size: Height and width of the observation's images in pixels.
        cameras: Names of the observation's cameras; frame streams and `render` show the first one.
        kept_simulators: Number of cached simulators; the least recently used is dropped. None: all.
        perturb: Perturbed factors of an episode (`envs.perturbations`).
        perturb_strength: Scale of their ranges, in (0, 1].

    Raises:
        ValueError: An image below 8 pixels, or an unknown perturbation.
    """

    def __init__(
        self,
        *,
        image_size: int,
        cameras: Sequence[str],
        kept_simulators: int | None = None,
        perturb: Sequence[str] = (),
        perturb_strength: float = 1.0,
    ) -> None:
        if image_size < 8:
            raise ValueError(f"image_size must be at least 8 pixels, got {image_size}.")
        self._factors = checked_factors(perturb)
        self._strength = checked_strength(perturb_strength)
        self._perturbation = Perturbation(frozenset(), self._strength, seed=0, task="")
        self._look: Look = STANDARD
        self._image_size = image_size
        self._cameras = tuple(cameras)
        self._kept = kept_simulators
        self._simulators: dict[str, AnySimulator] = {}
        self._renderers: dict[
            str, Renderer
        ] = {}  # by task; all belong to `_shared`, the drawing thread's
        self._shared: SharedRenderers | None = None
        self._task: str | None = None
        self._streams: dict[str, FrameRequest] = {}
        self._step, self._ended = 0, True

    @abc.abstractmethod
    def _make_simulator(self, task: str) -> AnySimulator:
        """Build a task's simulator."""

    @abc.abstractmethod
    def _make_renderer(self, simulator: AnySimulator, context: Any) -> Renderer:
        """Upload a simulator's scene into the OpenGL context."""

    @abc.abstractmethod
    def _scene(self, task: str) -> Hashable:
        """Key of a task's renderer: environments with the same key share it."""

    @abc.abstractmethod
    def _instruction(self, task: str) -> str:
        """The policy's instruction."""

    @abc.abstractmethod
    def _step_limit(self, task: str) -> int:
        """Steps after which an episode of the task is truncated."""

    @abc.abstractmethod
    def _facts(self, task: str) -> Info:
        """Entries of `info` besides task, success and frames."""

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`."""
        return await self.step_chunk([action])

    async def step_chunk(self, actions: Sequence[Any]) -> StepResult:
        """See `Environment.step_chunk`; the observation is rendered once, after the last action."""
        if len(actions) == 0:
            raise ValueError("step_chunk needs at least one action.")
        checked = [checked_action(action, space=self.spec.action_space) for action in actions]
        if self._task is None or self._ended:
            raise not_running()
        simulator = self._simulators[self._task]
        frames = FrameBuffer()
        limit = self._step_limit(self._task)
        for executed, action in enumerate(checked, start=1):
            success = simulator.step(action)
            self._step += 1
            self._ended = success or self._step == limit
            if self._ended or executed == len(checked):
                break
            self._add_frames(frames, {})
        observation, info = self._observe(frames, success=success)
        info["executed"] = executed
        return observation, float(success), success, self._ended and not success, info

    def render(self) -> NDArray[np.uint8]:
        """The first camera's current image, uint8 [image_size, image_size, 3]."""
        if self._task is None:
            raise RuntimeError("There is nothing to render: call reset first.")
        return self._image(self._image_size, self._cameras[0])

    async def close(self) -> None:
        """Free renderers and simulators; a later reset builds them again."""
        for task in list(self._renderers):
            self._give_back_renderer(task)
        self._simulators = {}
        self._task = None
        self._ended = True

    def _simulator(self, task: str) -> AnySimulator:
        """Returns the task's simulator; builds it if missing."""
        if task in self._simulators:
            self._simulators[task] = self._simulators.pop(task)  # most recently used
        else:
            if len(self._simulators) == self._kept:
                self._drop(next(iter(self._simulators)))
            self._simulators[task] = self._make_simulator(task)
            _return_freed_memory()
        return self._simulators[task]

    def _drop(self, task: str) -> None:
        """Frees a simulator's memory."""
        if task in self._renderers:
            self._give_back_renderer(task)
        del self._simulators[task]
        if self._task == task:
            self._task = None
        # simulators have reference cycles, and Python does not know their size
        gc.collect()

    def _give_back_renderer(self, task: str) -> None:
        assert self._shared is not None
        del self._renderers[task]
        self._shared.give_back(self._scene(task))

    def _running(self) -> AnySimulator:
        """The running episode's simulator."""
        if self._task is None:
            raise RuntimeError("There is no episode: call reset first.")
        return self._simulators[self._task]

    def _perturbed(self, options: Mapping[str, Any] | None, *, seed: int, task: str) -> None:
        """Read the perturbation of a new episode; by default all factors."""
        chosen = checked_factors((options or {}).get(OPTION, self._factors), known=self._factors)
        self._perturbation = Perturbation(frozenset(chosen), self._strength, seed, task)

    def _words(self, instructions: Sequence[str]) -> gymnasium.spaces.Text:
        """Space of the instructions, including rewordings if the environment has them."""
        length = max(map(len, instructions))
        characters = frozenset("".join(instructions))
        if REWORDED in self._factors:
            length, characters = longest_rewording(instructions)
        return gymnasium.spaces.Text(length, charset=characters)

    @property
    def _notice(self) -> str:
        """The environment's perturbations, for `EnvSpec.notice`."""
        names = ", ".join(self._factors)
        return f"perturbed: {names} (strength {self._strength:g})" if names else ""

    def _begin(
        self, task: str, streams: dict[str, FrameRequest], start: Callable[..., None]
    ) -> tuple[dict[str, Any], Info]:
        """Observation and info of an episode.

        `start(displacement=)` resets the task's simulator, with objects displaced in x and y [2].
        """
        self._task = task
        self._streams = streams
        self._look = STANDARD
        camera = None
        if self._perturbation.factors >= {CAMERA, OBJECT_POSE}:
            # the camera orbits what it sees, so its change is drawn before objects are displaced
            start(displacement=NOT_DISPLACED)
            camera = self._draw_look(self._perturbation.only(CAMERA)).camera
        start(displacement=self._perturbation.displacement())
        if self._perturbation.factors & SEEN:
            self._look = self._draw_look(self._perturbation)
        if camera is not None:
            self._look = dataclasses.replace(self._look, camera=camera)
        self._step = 0
        self._ended = False
        return self._observe(FrameBuffer(), success=False)

    def _draw_look(self, perturbation: Perturbation) -> Look:
        """The look of an episode that starts in the simulator's state."""
        return self._renderer().look(self._running(), self._cameras[0], perturbation)

    def _observe(self, frames: FrameBuffer, *, success: bool) -> tuple[dict[str, Any], Info]:
        """Observation and info after the last step; `frames` are those of the steps before it."""
        assert self._task is not None
        images = {camera: self._image(self._image_size, camera) for camera in self._cameras}
        self._add_frames(frames, images)
        sentence = self._instruction(self._task)
        generator = self._perturbation.generator(REWORDED)
        observation = {
            IMAGES: np.stack([images[camera] for camera in self._cameras]),
            PROPRIOCEPTION: self._running().proprioception,
            INSTRUCTION: sentence if generator is None else reworded(sentence, generator),
        }
        info: Info = {"task": self._task, "success": success, **self._facts(self._task)}
        if self._streams:
            info["frames"] = frames.take()
        return observation, info

    def _image(self, size: int, camera: str) -> NDArray[np.uint8]:
        look = self._look if camera == self._cameras[0] else self._look.from_another_camera()
        return self._renderer().render(self._running(), size, camera, look)

    def _renderer(self) -> Renderer:
        """The running task's renderer; the first call builds it."""
        assert self._task is not None
        if self._task not in self._renderers:
            self._shared = self._shared or renderers_of_thread()
            make = functools.partial(self._make_renderer, self._running())
            self._renderers[self._task] = self._shared.take(
                self._scene(self._task), make, size=self._image_size
            )
            _return_freed_memory()
        return self._renderers[self._task]

    def _add_frames(self, frames: FrameBuffer, images: dict[str, NDArray[np.uint8]]) -> None:
        """Adds the due frames; reuses the observation's images for streams of their size."""
        camera = self._cameras[0]
        rendered = {self._image_size: images[camera]} if images else {}
        for stream, request in self._streams.items():
            if self._ended or self._step % request.every == 0:
                if request.size not in rendered:
                    rendered[request.size] = self._image(request.size, camera)
                frames.add(stream, rendered[request.size], self._step)


def _return_freed_memory() -> None:
    """Return to the system the memory that building a simulator freed, which glibc keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
