"""Places fixtures as in episode i of the published evaluation: makes LIBERO's random draws without
its resets.

An initial state does not contain the places of cabinets, stoves and other fixtures. LIBERO draws
them within about 2 cm at each reset, from NumPy's global generator. The published loop
(run_libero_eval.py in experiments/robot/libero of github.com/moojink/openvla-oft, MIT) makes a
task's environment once, calls `env.seed(0)`, and then resets once per episode, so that episode i
has draw i. A draw depends on all earlier ones.

LIBERO's reset takes 0.4 s, because it loads the model again; its random draws alone take 1 ms here.
All draws are made: the noise of the arm's pose (of scale 0), the joints of drawers and doors, and
the places of objects, which the initial state then replaces.
"""

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

PUBLISHED_SEED = 0


class BodyPoses(NamedTuple):
    """Poses of a model's bodies in their parents' frames, those of fixtures as drawn."""

    positions: NDArray[np.float64]
    """[bodies, 3], metres."""
    rotations: NDArray[np.float64]
    """[bodies, 4], quaternions w x y z."""


@contextlib.contextmanager
def published_seed() -> Iterator[None]:
    """Set NumPy's global generator as `env.seed(0)` does; restore it afterwards."""
    before = np.random.get_state()
    np.random.seed(PUBLISHED_SEED)
    try:
        yield
    finally:
        np.random.set_state(before)


def draw_placements(env: Any, count: int) -> list[BodyPoses]:
    """Placements of the first `count` episodes.

    Args:
        env: LIBERO's task, built and not reloaded since; it needs a reset and an initial state
            afterwards.
        count: Number of episodes.
    """
    with published_seed():
        return list(itertools.islice(_episodes(env), count))


class LoadedFixture(NamedTuple):
    """A fixture in its state in a freshly loaded model."""

    body: int
    """MuJoCo's number of its root body."""
    position: tuple[float, ...]
    rotation: tuple[float, ...]

    @classmethod
    def of(cls, model: mujoco.MjModel, fixture: Any) -> "LoadedFixture":
        """Read its pose from its file, because the model has been reset since it was loaded."""
        root = fixture.get_obj()
        position, rotation = root.get("pos", "0 0 0"), root.get("quat", "1 0 0 0")
        body = model.body(fixture.root_body).id
        return cls(body, tuple(map(float, position.split())), tuple(map(float, rotation.split())))


def _episodes(env: Any) -> Iterator[BodyPoses]:
    errors: Any = importlib.import_module("robosuite.utils.errors")
    model = env.sim.model._model
    fixtures = {name: LoadedFixture.of(model, one) for name, one in env.fixtures_dict.items()}
    once = list(env.object_property_initializers)
    # LIBERO adds these samplers again whenever it loads the model, and draws from all of them. The
    # first reset loads it a second time.
    for loads in itertools.count(2):
        try:
            yield _draw(env, fixtures, once * loads)
        except errors.RandomizationError:  # no room for an object: LIBERO resets once more
            continue


def _draw(env: Any, fixtures: dict[str, LoadedFixture], joint_samplers: list[Any]) -> BodyPoses:
    """The random draws of LIBERO's `_reset_internal`, in its order."""
    model, data = env.sim.model._model, env.sim.data._data
    for body, position, rotation in fixtures.values():  # samplers of objects in drawers read them
        model.body_pos[body], model.body_quat[body] = position, rotation
    mujoco.mj_resetData(model, data)
    np.random.randn(len(env.robots[0].init_qpos))
    for sampler in joint_samplers:
        env.object_states_dict[sampler.name].set_joint(sampler.sample())
    mujoco.mj_kinematics(model, data)
    placed = env.placement_initializer.sample()
    placed = env.conditional_placement_initializer.sample(env.sim, placed)
    placed = env.conditional_placement_on_objects_initializer.sample(placed)
    for name in fixtures.keys() & placed.keys():
        body = fixtures[name].body
        model.body_pos[body], model.body_quat[body], _ = placed[name]
    return BodyPoses(model.body_pos.copy(), model.body_quat.copy())
