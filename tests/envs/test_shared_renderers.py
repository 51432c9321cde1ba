"""Renderers that environments of a thread share: made once, drawn right for each, freed with the
last holder.
"""

import asyncio
import threading
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import psutil
import pytest
from hypothesis import given

from envs.metaworld.metaworld_env import MetaWorldEnv
from envs.shared_renderers import SharedRenderers, renderers_of_thread

SCENES = ("kitchen", "study", "living room")


class CountedRenderer:
    """Draws nothing; records whether it was freed."""

    def __init__(self, context):
        self.context, self.freed = context, False

    def render(self, simulator, size, camera):
        return np.zeros((size, size, 3), np.uint8)

    def close(self):
        assert not self.freed
        self.freed = True


@given(st.lists(st.sampled_from(SCENES), max_size=12), st.randoms())
def test_a_scene_has_one_renderer_while_it_has_holders(taken, random):
    shared, held, made = SharedRenderers(), {}, []

    def make(context):
        made.append(CountedRenderer(context))
        return made[-1]

    for scene in taken:
        renderer = shared.take(scene, make, size=8)
        assert held.setdefault(scene, renderer) is renderer
        assert renderer.context is made[0].context
    assert len(made) == len(set(taken))
    left = Counter(taken)
    for scene in random.sample(taken, len(taken)):
        assert not held[scene].freed
        shared.give_back(scene)
        left[scene] -= 1
        assert held[scene].freed == (left[scene] == 0)
    assert shared._context is None


def test_environments_of_a_scene_share_its_renderer_and_each_sees_its_own():
    async def play():
        first, second, other = (
            MetaWorldEnv(["push"]),
            MetaWorldEnv(["push"]),
            MetaWorldEnv(["push"], render_quality="full"),
        )
        (alone, _), (beside, _) = await first.reset(seed=1), await second.reset(seed=2)
        assert not np.array_equal(alone["images"], beside["images"])
        assert np.array_equal(first.render(), alone["images"][0])
        assert np.array_equal(second.render(), beside["images"][0])
        await other.reset(seed=1)
        assert first._renderers["push"] is second._renderers["push"]
        assert first._renderers["push"] is not other._renderers["push"]
        await other.close()
        await first.close()
        assert np.array_equal(second.render(), beside["images"][0])
        again, _ = await first.reset(seed=1)
        assert np.array_equal(again["images"], alone["images"])
        await first.close()
        await second.close()

    asyncio.run(play())


def test_each_thread_has_separate_renderers():
    of_the_other = []
    thread = threading.Thread(target=lambda: of_the_other.append(renderers_of_thread()))
    thread.start()
    thread.join()
    assert renderers_of_thread() is renderers_of_thread()
    assert of_the_other[0] is not renderers_of_thread()


@pytest.mark.parametrize("broken", ["make", "context"])
def test_a_renderer_that_could_not_be_made_is_not_kept(broken, monkeypatch):
    shared = SharedRenderers()

    def fail(*arguments):
        raise RuntimeError("no driver")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="no driver"):
        if broken == "context":
            patched.setattr("envs.shared_renderers.make_context", fail)
        shared.take("kitchen", fail, size=8)
    renderer = shared.take("kitchen", CountedRenderer, size=8)
    shared.give_back("kitchen")
    assert renderer.freed


def test_what_building_a_simulator_has_freed_goes_back_to_the_system(monkeypatch):
    """Allocates like a build: many blocks are freed below one that stays, and glibc keeps them."""
    built = MetaWorldEnv._make_simulator
    process, seen = psutil.Process(), []

    def wasteful(self, task):
        blocks = [bytearray(60_000) for _ in range(2000)]
        simulator = built(self, task)
        kept = blocks.pop()
        blocks.clear()
        seen.append(process.memory_info().rss)
        return simulator, kept

    monkeypatch.setattr(MetaWorldEnv, "_make_simulator", wasteful)
    MetaWorldEnv(["push"])._simulator("push")
    assert process.memory_info().rss < seen[0] - 60e6
