"""The check at start: silent with the pinned versions, and a warning with the difference for
others.
"""

import importlib.metadata
import warnings

import pytest

from envs.libero import physics


@pytest.fixture(scope="module")
def simulator(make_simulator):
    return make_simulator("object", 4)


def test_pinned_versions_behave_as_recorded(simulator):
    with warnings.catch_warnings():
        warnings.simplefilter("error", physics.PhysicsWarning)
        assert physics.check_physics(simulator) == []


def test_motion_does_not_depend_on_the_scene(make_simulator):
    assert physics.arm_motion(make_simulator("goal", 7)) == pytest.approx(
        physics.RECORDED_MOTION_M, abs=1e-4
    )


def test_other_version_is_reported_with_its_effect(simulator, monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "3.9.0" if name == "mujoco" else version(name)
    )
    with pytest.warns(
        physics.PhysicsWarning,
        match=r"mujoco is 3\.9\.0 instead of 3\.8\.1\. Success rates .* can change by tens of percent",
    ):
        physics.check_physics(simulator)


def test_other_resting_height_is_reported(monkeypatch):
    monkeypatch.setitem(physics.RECORDED_HEIGHTS_M, "cream_cheese", 0.02)
    assert physics.drop_differences() == [
        "A dropped object (cream_cheese) is at 0.0089 m instead of 0.0200 m."
    ]


def test_fall_that_diverges_is_reported(monkeypatch):
    monkeypatch.setattr(
        physics,
        "drop",
        lambda: (physics.RECORDED_HEIGHTS_M | {"ketchup": float("nan")}, physics.RECORDED_PEAK_M),
    )
    assert physics.drop_differences() == [
        "A dropped object (ketchup) is at nan m instead of 0.0724 m."
    ]


def test_other_motion_of_the_arm_is_reported(simulator, monkeypatch):
    monkeypatch.setattr(physics, "RECORDED_MOTION_M", (0.0488, 0.0409, 0.0))
    [sentence] = physics.motion_differences(simulator)
    assert sentence.startswith("Known actions move the gripper by [0.0488, 0.0409, 0.0648] m")


def test_box_comes_to_rest_at_half_its_height():
    heights, _ = physics.drop()
    assert heights["cream_cheese"] == pytest.approx(0.0089, abs=1e-4)  # its half height
