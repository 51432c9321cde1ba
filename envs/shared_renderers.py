"""Renderers shared by a thread's environments: each scene is uploaded once.

Most of a simulator's memory is for images: a second copy of the model and its OpenGL data. Neither
changes during an episode, so a server with six environments needs only one copy. A renderer lives
as long as an environment holds it. All draw into one OpenGL context, which belongs to the thread.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.offscreen import make_context
from envs.perturbations import Perturbation
from envs.perturbed_look import Look


class Renderer(Protocol):
    """Draws the scene of simulators with equal models."""

    def look(self, simulator: Any, camera: str, perturbation: Perturbation) -> Look:
        """Draw the look of an episode that starts in the simulator's state."""

    def render(self, simulator: Any, size: int, camera: str, look: Look) -> NDArray[np.uint8]:
        """Render the scene from `camera` as `look` changes it: uint8 [size, size, 3]."""

    def close(self) -> None:
        """Free its memory in the OpenGL context."""


class SharedRenderers:
    """Reference-counted renderers of one thread, by scene."""

    def __init__(self) -> None:
        self._context: Any = None
        self._renderers: dict[Hashable, Renderer] = {}
        self._holders: Counter[Hashable] = Counter()

    def take(self, scene: Hashable, make: Callable[[Any], Renderer], *, size: int) -> Renderer:
        """Acquire the renderer of `scene`; the first caller's `make` builds it, for `size` pixels.

        Raises:
            RuntimeError: OpenGL or its driver is missing.
        """
        if scene not in self._renderers:
            self._context = self._context or make_context(size)
            self._renderers[scene] = make(self._context)
        self._holders[scene] += 1
        return self._renderers[scene]

    def give_back(self, scene: Hashable) -> None:
        """Release one `take`; the last one frees the renderer, and the last renderer the
        context.
        """
        self._holders[scene] -= 1
        if self._holders[scene] == 0:
            del self._holders[scene]
            self._renderers.pop(scene).close()
        if not self._renderers:
            self._context.free()
            self._context = None


_OF_THREAD = threading.local()


def renderers_of_thread() -> SharedRenderers:
    """Return the calling thread's renderers; use them only in that thread."""
    if not hasattr(_OF_THREAD, "renderers"):
        _OF_THREAD.renderers = SharedRenderers()
    renderers: SharedRenderers = _OF_THREAD.renderers
    return renderers
