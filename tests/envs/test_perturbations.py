"""Perturbed episodes differ from the standard ones in the named factors only, by the seed alone."""

import asyncio
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from envs.checker import check_env
from envs.libero.libero_env import LiberoEnv
from envs.metaworld.metaworld_env import MetaWorldEnv
from envs.metaworld.metaworld_simulator import MetaWorldSimulator
from envs.metaworld.suite import FIXED, INSTRUCTIONS
from envs.perturbations import FACTORS, SEEN, Perturbation
from envs.perturbed_look import LightChange, draw_candidates, large_surfaces, work_surface
from siirl.evaluate import main as evaluate
from siirl.terminal.exit_status import REFUSED
from siirl.train import main as train

SEED = 7


@pytest.fixture
def make():
    """Makes Meta-World environments, which are closed with the test."""
    made = []

    def make_env(*tasks, **kwargs):
        made.append(MetaWorldEnv(tasks=tasks or ("push",), **kwargs))
        return made[-1]

    yield make_env
    for env in made:
        asyncio.run(env.close())


def start(env, *factors, seed=SEED):
    """Observation of the episode of `seed` with `factors`."""
    observation, _ = asyncio.run(env.reset(seed=seed, options={"perturb": factors}))
    return observation


@pytest.fixture(scope="module")
def metaworld():
    env = MetaWorldEnv(tasks=("push", "drawer-open"), perturb=FACTORS)
    yield env
    asyncio.run(env.close())


@pytest.fixture(scope="module")
def libero():
    env = LiberoEnv(suite="object", tasks=(0,), assets="stand_in", image_size=64, perturb=FACTORS)
    yield env
    asyncio.run(env.close())


@pytest.fixture(params=["metaworld", "libero"])
def env(request):
    """Either simulator, with all factors."""
    return request.getfixturevalue(request.param)


def test_an_episode_without_factors_is_the_standard_episode(make):
    standard, _ = asyncio.run(make().reset(seed=SEED))
    perturbed = start(make(perturb=FACTORS))
    assert np.array_equal(standard["images"], perturbed["images"])
    assert standard["instruction"] == perturbed["instruction"]


@pytest.mark.parametrize("factor", sorted(SEEN))
def test_a_factor_of_the_images_changes_images_only(env, factor):
    standard, perturbed = start(env), start(env, factor)
    assert (standard["images"][0] != perturbed["images"][0]).any()
    assert np.array_equal(standard["proprioception"], perturbed["proprioception"])
    assert standard["instruction"] == perturbed["instruction"]


def test_the_camera_at_the_wrist_does_not_move(libero):
    standard, perturbed = start(libero), start(libero, "camera")
    assert np.array_equal(standard["images"][1], perturbed["images"][1])


def test_the_instruction_changes_alone(env):
    standard, perturbed = start(env), start(env, "instruction")
    assert standard["instruction"] != perturbed["instruction"]
    assert np.array_equal(standard["images"], perturbed["images"])


def test_objects_are_displaced_by_at_most_five_centimetres(libero):
    start(libero)
    standard = libero.simulator.data.xpos.copy()
    start(libero, "object_pose")
    moved = np.linalg.norm((libero.simulator.data.xpos - standard)[:, :2], axis=1).max()
    assert 0.001 < moved < 0.055  # settling adds a millimetre or two


def perturbations(factor, *, strength=1.0):
    """The perturbations of 400 episodes."""
    return [Perturbation(frozenset({factor}), strength, seed, "push") for seed in range(400)]


@pytest.mark.parametrize("strength", [1.0, 0.2])
def test_displacements_fill_a_disc_evenly(strength):
    moves = np.array(
        [each.displacement() for each in perturbations("object_pose", strength=strength)]
    )
    shares = (np.linalg.norm(moves, axis=1) / (0.05 * strength)) ** 2  # of the disc's area
    assert shares.max() <= 1
    assert np.quantile(shares, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.06)
    assert moves.mean(axis=0) == pytest.approx([0, 0], abs=0.005 * strength)


@pytest.mark.parametrize(("strength", "most"), [(1.0, 5), (0.6, 3), (0.5, 3), (0.2, 1), (0.01, 1)])
def test_strength_bounds_the_number_of_distractors(strength, most):
    counts = {
        draw_candidates(each.generator("distractors"), strength).wanted
        for each in perturbations("distractors")
    }
    assert counts == set(range(1, most + 1))


def test_light_is_not_cut_at_one():
    light = SimpleNamespace(
        ambient=np.zeros(3), diffuse=np.full(3, 0.8), specular=np.full(3, 0.3), dir=[0.0, 0.0, -1.0]
    )
    LightChange(2.0, np.array([0.1, -0.1, -0.7]), np.eye(3)).change(light)
    assert light.diffuse == pytest.approx([1.7, 1.5, 0.9])
    assert light.specular == pytest.approx([0.7, 0.5, 0.0])
    assert not light.ambient.any()  # of a light without an ambient part


@pytest.mark.parametrize(("make_env", "name"), [("metaworld", "tablelink"), ("libero", "floor")])
def test_texture_changes_the_work_surface_alone_or_with_all_others(request, make_env, name):
    env = request.getfixturevalue(make_env)
    changed = []
    for seed in range(12):
        start(env, "texture", seed=seed)
        changed.append(frozenset(env._look.surfaces))
    simulator = env._running()
    model = simulator.model
    surfaces = large_surfaces(model)
    (work,) = work_surface(model, simulator.data, surfaces)
    body = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, model.geom_bodyid[work])
    assert body == name
    assert set(changed) == {frozenset({work}), frozenset(surfaces)}


@pytest.mark.parametrize("task", ["hand-insert", "pick-out-of-hole", "sweep-into"])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_a_table_of_several_pieces_has_one_colour(make, task, strength):
    env = make(task, perturb=("texture",), perturb_strength=strength)
    for seed in range(8):
        start(env, "texture", seed=seed)
        simulator, colours = env._running(), env._look.surfaces
        pieces = work_surface(simulator.model, simulator.data, large_surfaces(simulator.model))
        assert len(pieces) > 1
        assert (
            len({colours[piece].tobytes() if piece in colours else None for piece in pieces}) == 1
        )


def test_object_and_goal_move_together(make):
    env = make(perturb=("object_pose",))
    start(env)
    standard = env.state
    start(env, "object_pose")
    thing, goal = slice(4, 6), slice(36, 38)
    displacement = env.state[thing] - standard[thing]
    assert 0.001 < np.linalg.norm(displacement) <= 0.05
    assert env.state[goal] - standard[goal] == pytest.approx(displacement)


def places(simulator):
    """x and y of bodies, sites and geoms in the world [N, 2]."""
    data = simulator.data
    return np.concatenate([data.xpos, data.site_xpos, data.geom_xpos])[:, :2]


@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_every_task_displaces_its_object_or_refuses_to(task):
    simulator, displacement = MetaWorldSimulator(task), np.array([0.02, -0.015])
    simulator.reset(seed=SEED)
    standard = places(simulator)
    simulator.reset(seed=SEED, displacement=displacement)
    moved = places(simulator) - standard
    if task in FIXED:
        assert not moved.any()
        with pytest.raises(
            ValueError, match=rf"in {task}, so .*: leave object_pose out of perturb"
        ):
            MetaWorldEnv(tasks=("push", task), perturb=("light", "object_pose"))
    else:
        assert np.isclose(moved, displacement, atol=1e-4).any()
        MetaWorldEnv(tasks=(task,), perturb=("object_pose",))


@pytest.mark.parametrize(
    ("command", "own"),
    [(train, ("pipeline=grpo", "reward=success")), (evaluate, ("checkpoint=assets/tiny_vla",))],
)
def test_a_task_that_cannot_be_displaced_is_refused_before_the_start(command, own, capsys):
    words = ("env=metaworld", "env.tasks=[push,plate-slide]", "env.perturb=[object_pose]")
    assert command((*own, *words)) == REFUSED
    told = capsys.readouterr()
    assert "in plate-slide, so they cannot be displaced" in told.err
    assert "leave object_pose out of perturb, or choose other tasks" in told.err
    assert told.out == ""


def test_a_seed_gives_the_same_perturbation_in_any_order(env):
    first = start(env, *FACTORS)
    start(env, seed=SEED + 1)
    again = start(env, *FACTORS)
    assert np.array_equal(first["images"], again["images"])
    assert first["instruction"] == again["instruction"]


def test_tasks_with_the_same_seed_draw_different_changes():
    changes = [
        Perturbation(frozenset({"object_pose"}), 1.0, SEED, task).displacement().tolist()
        for task in ("push", "reach", "push")
    ]
    assert changes[0] == changes[2] != changes[1]


def test_a_factor_draws_the_same_alone_and_among_others(env):
    assert start(env, "instruction")["instruction"] == start(env, *FACTORS)["instruction"]


def look(env, *factors):
    """The changes to the images of an episode with `factors`."""
    start(env, *factors)
    return env._look


@pytest.mark.parametrize("factors", [("camera", "object_pose"), FACTORS])
def test_the_camera_moves_alike_when_objects_are_displaced(make, factors):
    # in this episode the camera orbits the button, which object_pose displaces
    env = make("button-press", perturb=FACTORS)
    alone, together = look(env, "camera").camera, look(env, *factors).camera
    for part in ("pivot", "rotation", "scale", "yaw", "pitch"):
        assert np.array_equal(getattr(alone, part), getattr(together, part))


def test_light_and_surfaces_change_alike_alone_and_among_others(env):
    together = look(env, *FACTORS)
    light, surfaces = look(env, "light").light, look(env, "texture").surfaces
    assert light.brightness == together.light.brightness
    assert np.array_equal(light.tint, together.light.tint)
    assert np.array_equal(light.rotation, together.light.rotation)
    assert surfaces.keys() == together.surfaces.keys() != set()
    assert all(np.array_equal(surfaces[geom], together.surfaces[geom]) for geom in surfaces)


def test_objects_are_displaced_alike_alone_and_among_others(make):
    env = make(perturb=FACTORS)
    start(env, "object_pose")
    alone = env.state
    start(env, *FACTORS)
    assert np.array_equal(env.state, alone)


def test_libero_displaces_objects_alike_alone_and_among_others(libero):
    start(libero, "object_pose")
    alone = libero.simulator.data.qpos.copy()
    start(libero, *FACTORS)
    assert np.array_equal(libero.simulator.data.qpos, alone)


@pytest.mark.parametrize("task", ["push", "button-press"])
def test_distractors_are_drawn_alike_alone_and_among_others(make, task):
    """Displaced objects may occupy the place of one; then a later one of the same draws lies
    elsewhere.
    """
    env = make(task, perturb=FACTORS)
    drawn = draw_candidates(
        Perturbation(frozenset({"distractors"}), 1.0, SEED, task).generator("distractors"), 1.0
    )
    colours = [tuple(solid.colour) for solid in drawn.solids]
    for factors in (("distractors",), ("distractors", "object_pose"), FACTORS):
        distractors = look(env, *factors).distractors
        numbers = [colours.index(tuple(solid.colour)) for solid in distractors]
        assert numbers == sorted(numbers)
        assert len(numbers) == drawn.wanted


def test_the_start_of_a_standard_episode_survives_displaced_ones(libero):
    before = start(libero)["images"]
    start(libero, "object_pose")
    assert np.array_equal(start(libero)["images"], before)


def test_a_perturbed_environment_passes_the_checker(make):
    check_env(make(perturb=FACTORS, max_episode_steps=20))


def test_the_environment_names_its_perturbations():
    env = MetaWorldEnv(tasks=("push",), perturb=("light",), perturb_strength=0.5)
    assert env.spec.notice == "perturbed: light (strength 0.5)"


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        (("camra",), "unknown factor 'camra'.*camera"),
        ("camera", "must be a list of names, got 'camera'"),
        ({"camera": 0.2}, "must be a list of names, got {'camera': 0.2}"),
        (("light", "light"), "a factor twice"),
    ],
)
def test_a_wrong_factor_is_refused(factors, sentence):
    with pytest.raises(ValueError, match=sentence):
        MetaWorldEnv(perturb=factors)


@pytest.mark.parametrize("strength", [0.0, -1.0, 1.5, float("nan")])
def test_a_strength_outside_its_range_is_refused(strength):
    with pytest.raises(ValueError, match="perturb_strength must lie in"):
        MetaWorldEnv(perturb=("light",), perturb_strength=strength)


def test_an_episode_of_an_environment_without_perturbations_cannot_have_one(make):
    with pytest.raises(ValueError, match=r"made without perturbations: name .* at the server"):
        start(make(), "camera")


def test_an_episode_cannot_have_a_factor_that_the_environment_lacks(make):
    env = make(perturb=("light",))
    with pytest.raises(ValueError, match="unknown factor 'camera'"):
        start(env, "camera")
