"""LIBERO's tasks as language-conditioned environments, with two camera images.

One instance serves its tasks in any order: a task's simulator is built when first needed (in a few
seconds) and reused between episodes. An episode starts from one of the benchmark's 50 initial
states after ten settling steps, with fixtures placed as in the published evaluation's episode of
that state, and ends at success or at the published step limit. The reward is 1 at success and 0
before. Observations contain no poses of objects.

Actions are the benchmark's: seven numbers in [-1, 1] for the gripper's motion in x, y, z (1 is
5 cm), its rotation about x, y, z (1 is 0.5 rad), and the fingers (+1 closes, -1 opens).
`envs.libero.openvla_conventions` converts outputs of published checkpoints.

An instance belongs to one thread, because its OpenGL context does.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import gymnasium
import numpy as np

from envs.arguments import check_counts, checked_choice, checked_seed, read_options
from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, EnvSpec, Info, SimulatorMemory
from envs.libero.assets import AUTO, LABEL, SHORT_NOTICE, find_assets
from envs.libero.initial_states import States, state_number
from envs.libero.rendering import CAMERAS, SceneCameras
from envs.libero.suites import ACTION_SIZE, PROPRIOCEPTION_SIZE, choose_tasks
from envs.offscreen import RenderQuality
from envs.perturbations import OPTION
from envs.simulator_episode import SimulatorEnv

if TYPE_CHECKING:  # imports MuJoCo, which looks for OpenGL at once
    from envs.libero.libero_simulator import LiberoSimulator

DEFAULT_SUITE = "object"  # one scene and one skill: the easiest to learn
INIT_STATE = "init_state"
SHARED_STATES = "env.states=all: training and evaluation start from the same initial states"
# Measured in November 2026. Three tasks of suite object, 128-pixel images, placeholders for 17
# benchmark files: 5.4 GB with one environment per server, 6.6 GB with two.
MEMORY = SimulatorMemory(server=300e6, scene=700e6, simulator=150e6, bounded=True)
# Five tasks: 1.53 GB with one environment per server, 2.0 GB with two.
STAND_IN_MEMORY = SimulatorMemory(server=300e6, scene=50e6, simulator=50e6, bounded=True)
# A seed selects one of a task's 50 initial states: those below 1,000,000 the evaluation's states,
# higher ones the others.
FIRST_EXPERT_SEED = 1_900_000
CAMERA_SETS = {"both": tuple(CAMERAS), **{name: (name,) for name in CAMERAS}}


class LiberoEnv(SimulatorEnv["LiberoSimulator"]):
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
        kept_simulators: int | None = None,
        perturb: Sequence[str] = (),
        perturb_strength: float = 1.0,
    ) -> None:
        """Find the assets (may download); simulators and the OpenGL context are made at first use.

        Args:
            suite: `spatial`, `object`, `goal`, `10` (or `long`), `90`, or several of them:
                `spatial+goal`.
            tasks: Tasks by name or by number in the suite (`spatial/3` if there are several
                suites); all by default.
            assets: A folder of LIBERO's assets, `stand_in`, or `auto` (see `envs.libero.assets`).
            image_size: Height and width of the observation's images in pixels.
            camera: `both`, `agentview` or `wrist`.
            max_episode_steps: Step limit of an episode; by default the published one of each suite.
            states: `split` keeps every fifth initial state for evaluation (seeds below 1,000,000);
                `all` is the published protocol: seed k starts from state k modulo 50, and for seeds
                0 to 49 the environment equals LIBERO's own in the published loop.
            render_quality: `fast` (see `envs.offscreen`) or `full`. They look different: train and
                evaluate with the same quality.
            kept_simulators: Number of cached simulators, 50 MB and more each; by default all. 1
                suffices if tasks are played one after another.
            perturb: Factors in which episodes differ from the standard ones (`envs.perturbations`).
                `object_pose` moves all movable objects together by up to 5 cm.
            perturb_strength: Scale of the perturbations, in (0, 1].

        Raises:
            ValueError: An unknown name, a task given twice, a number out of range, or incomplete
                assets.
            RuntimeError: LIBERO is not installed.
        """
        chosen = choose_tasks(suite, tasks)
        check_counts(max_episode_steps=max_episode_steps, kept_simulators=kept_simulators)
        checked_choice("camera", camera, CAMERA_SETS)
        checked_choice("states", states, get_args(States))
        checked_choice("render_quality", render_quality, get_args(RenderQuality))
        super().__init__(
            image_size=image_size,
            cameras=CAMERA_SETS[camera],
            kept_simulators=kept_simulators,
            perturb=perturb,
            perturb_strength=perturb_strength,
        )
        self._tasks = {task.name: task for task in chosen}
        self._limit = max_episode_steps
        self._states = states
        self._quality = render_quality
        self._assets = find_assets(assets)
        self.spec = self._make_spec()
        # of all tasks or none: a batch has the distance of every episode
        self._knows_distance = self.spec.tasks_with_distance == self.spec.tasks
        self._state_number = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Info]:
        """See `Environment.reset`; options: `task`, `frames`, `perturb`, `init_state` (number
        of a state).

        By default the seed selects the state (see `states` of the constructor). The seed also
        determines perturbations; nothing else is random.
        """
        task, streams = read_options(options, spec=self.spec, further=(INIT_STATE, OPTION))
        seed = checked_seed(seed)
        self._ended = True
        simulator = self._simulator(task)
        seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        self._perturbed(options, seed=seed, task=task)
        number = (options or {}).get(INIT_STATE)
        if number is None:
            number = state_number(seed, count=len(simulator.states), states=self._states)
        self._state_number = _checked_state(number)
        return self._begin(task, streams, partial(simulator.reset, self._state_number))

    @property
    def simulator(self) -> "LiberoSimulator":
        """Return the episode's simulator with true poses, for experts and oracles only."""
        return self._running()

    @property
    def steps(self) -> int:
        """Environment steps of the running episode."""
        return self._step

    def _make_spec(self) -> EnvSpec:
        shape = (len(self._cameras), self._image_size, self._image_size, 3)
        instructions = [task.instruction for task in self._tasks.values()]
        observation_space = gymnasium.spaces.Dict(
            {
                IMAGES: gymnasium.spaces.Box(0, 255, shape, np.uint8),
                PROPRIOCEPTION: gymnasium.spaces.Box(
                    -np.inf, np.inf, (PROPRIOCEPTION_SIZE,), np.float32
                ),
                INSTRUCTION: self._words(instructions),
            }
        )
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        name = f"libero ({LABEL} assets)" if self._assets.stand_in else "libero"
        limit = max(self._step_limit(task) for task in self._tasks)
        notices = (
            SHORT_NOTICE if self._assets.stand_in else "",
            SHARED_STATES if self._states == "all" else "",
            self._notice,
        )
        notice = "; ".join(filter(None, notices))
        return EnvSpec(
            name,
            tuple(self._tasks),
            observation_space,
            action_space,
            limit,
            tasks_with_distance=tuple(
                name for name, task in self._tasks.items() if task.only_places
            ),
            needs_opengl=True,
            notice=notice,
            memory=STAND_IN_MEMORY if self._assets.stand_in else MEMORY,
            expert="envs.libero.expert.script:expert",
            expert_seed=FIRST_EXPERT_SEED,
        )

    def _step_limit(self, task: str) -> int:
        return self._tasks[task].step_limit if self._limit is None else self._limit

    def _instruction(self, task: str) -> str:
        return self._tasks[task].instruction

    def _facts(self, task: str) -> Info:
        facts: Info = {
            "suite": self._tasks[task].suite,
            INIT_STATE: self._state_number,
            "assets": self._assets.label,
        }
        if self._knows_distance:
            from envs.libero.goal_distance import goal_distance

            facts["oracle_distance"] = goal_distance(self._simulators[task])
        return facts

    def _make_simulator(self, task: str) -> "LiberoSimulator":
        from envs.libero.folders import import_libero

        import_libero()  # before MuJoCo is imported: it chooses the OpenGL library
        from envs.libero.libero_simulator import LiberoSimulator
        from envs.libero.physics import check_physics_once

        simulator = LiberoSimulator(self._tasks[task], self._assets)
        check_physics_once(simulator)
        return simulator

    def _scene(self, task: str) -> Hashable:
        return type(self), task, self._assets, self._quality

    def _make_renderer(self, simulator: "LiberoSimulator", context: Any) -> SceneCameras:
        return SceneCameras(
            model=simulator.model, context=context, quality=self._quality, size=self._image_size
        )


def _checked_state(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise ValueError(f"{INIT_STATE} must be the number of an initial state, got {number!r}.")
    return int(number)
