"""Renderers that the environments of a thread have in common: a scene's meshes and textures are
uploaded once, whoever draws it.

Of what a simulator takes, most is for its pictures: a second copy of the model, and what OpenGL
makes of it. None of that changes in an episode, so a server with six environments needs it once. A
renderer lives as long as an environment holds it, and all of them draw into one OpenGL context,
which belongs to the thread.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.offscreen import make_context


class Renderer(Protocol):
    """Draws the scene of every simulator that was built alike."""

    def render(self, simulator: Any, size: int, camera: str) -> NDArray[np.uint8]:
        """The simulator's scene now as `camera` sees it: uint8 [size, size, 3]."""

    def close(self) -> None:
        """Free what it took in the OpenGL context."""


class SharedRenderers:
    """The renderers of one thread by scene, and how many environments hold each."""

    def __init__(self) -> None:
        self._context: Any = None
        self._renderers: dict[Hashable, Renderer] = {}
        self._holders: Counter[Hashable] = Counter()

    def take(self, scene: Hashable, make: Callable[[Any], Renderer], *, size: int) -> Renderer:
        """The renderer of `scene`, made in the OpenGL context by `make` where nobody holds one;
        images start out at `size` pixels.

        Raises:
            RuntimeError: OpenGL or its driver is missing.
        """
        if scene not in self._renderers:
            self._context = self._context or make_context(size)
            self._renderers[scene] = make(self._context)
        self._holders[scene] += 1
        return self._renderers[scene]

    def give_back(self, scene: Hashable) -> None:
        """Once for each `take`; the last one frees the renderer, and the last renderer the context."""
        self._holders[scene] -= 1
        if self._holders[scene] == 0:
            del self._holders[scene]
            self._renderers.pop(scene).close()
        if not self._renderers:
            self._context.free()
            self._context = None


_OF_THREAD = threading.local()


def renderers_of_thread() -> SharedRenderers:
    """Those of the thread that calls, in which they have to be taken, used and given back."""
    if not hasattr(_OF_THREAD, "renderers"):
        _OF_THREAD.renderers = SharedRenderers()
    renderers: SharedRenderers = _OF_THREAD.renderers
    return renderers
