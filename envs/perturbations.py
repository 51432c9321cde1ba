"""Seeded perturbations of a robot's episode: which factors change, and by how much.

    env.perturb=[camera,light] env.perturb_strength=0.5

A perturbed episode differs from the standard episode of its seed only in the listed factors. Each
factor draws from its own generator, seeded by the episode's seed and task. So the rollouts of a
group share its draws, tasks have different ones, and a factor gives the same change alone and with
others. One exception: distractors take the first of their drawn places that are free, which depends
on where `object_pose` has moved the objects. `strength` scales ranges; 1 is the range
given here. Of `distractors` it scales the largest number, and `instruction` has none.

At strength 1:

- `camera`: the first camera either orbits by up to 75° (in half of these cases it also rises by
  15°), moves away to at most twice its distance, or turns by up to 10° about two axes (LIBERO-Plus'
  ranges);
- `light`: 0.4 to 2.5 times the intensity, a tint of up to 30 % per channel, a direction changed by
  up to 45° (our ranges, as are all below);
- `texture`: surfaces larger than 40 cm (table, floor, walls) get one random colour each;
- `object_pose`: movable objects are displaced by up to 3 cm in x and y;
- `instruction`: the sentence gets other verbs (`envs.rewording`) and another frame;
- `distractors`: one to four coloured solids lie in free places of the table; the arm passes
  through them.

LIBERO-Plus (arXiv 2510.13626, github.com/sylvestf/LIBERO-plus at 4976dc3) lists its camera poses in
`task_classification.json`: of 1,599 variants, 62 % orbit, 20 % change the distance and 18 % turn.
LIBERO-Plus and LIBERO-PRO (arXiv 2510.03827) have prepared scenes and reworded sentences for the
other factors. Here they are generated, so scores are not comparable with theirs.

Left out: sensor noise and the robot's initial pose, which LIBERO-Plus has.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.names import listed, nearest

CAMERA = "camera"
LIGHT = "light"
TEXTURE = "texture"
DISTRACTORS = "distractors"
OBJECT_POSE, INSTRUCTION = "object_pose", "instruction"
# An object's width; LIBERO draws places within 1 to 5 cm, Meta-World within some 20.
LARGEST_DISPLACEMENT_M = 0.03
FACTORS = (CAMERA, LIGHT, TEXTURE, OBJECT_POSE, INSTRUCTION, DISTRACTORS)
SEEN = frozenset((CAMERA, LIGHT, TEXTURE, DISTRACTORS))
"""Factors that change images only."""

OPTION = "perturb"
"""Reset option: the factors of one episode, chosen from those of the environment."""


@dataclass(frozen=True)
class Perturbation:
    """The factors of an episode, and what their draws depend on."""

    factors: frozenset[str]
    strength: float
    seed: int
    task: str

    def generator(self, factor: str) -> np.random.Generator | None:
        """The generator of `factor`; None if the episode does not have it."""
        if factor not in self.factors:
            return None
        task = zlib.crc32(self.task.encode())  # the same in every process
        return np.random.default_rng((FACTORS.index(factor), self.seed, task))

    def only(self, factor: str) -> "Perturbation":
        """The same draws of `factor`, without the others."""
        return replace(self, factors=self.factors & {factor})

    def displacement(self) -> NDArray[np.float64]:
        """Displacement of objects in x and y [2], in metres."""
        generator = self.generator(OBJECT_POSE)
        if generator is None:
            return np.zeros(2)
        return self.strength * LARGEST_DISPLACEMENT_M * generator.uniform(-1, 1, 2)


def checked_factors(factors: Any, *, known: Sequence[str] = FACTORS) -> tuple[str, ...]:
    """Return `factors` as a tuple.

    Raises:
        ValueError: Not a list of names, an unknown name, or a name given twice.
    """
    if isinstance(factors, str) or not isinstance(factors, Iterable):
        raise ValueError(f"perturb must be a list of names, got {factors!r}.")
    names = tuple(factors)
    if names and not known:
        raise ValueError(
            f"perturb has {names[0]!r}, but the environment was made without perturbations: name "
            "factors in its env.perturb, at the server if it is served."
        )
    for name in names:
        if name not in known:
            raise ValueError(
                f"perturb has the unknown factor {name!r}.{nearest(str(name), known)} "
                f"Known: {listed(name, known)}."
            )
    if len(set(names)) < len(names):
        raise ValueError(f"perturb has a factor twice: {', '.join(names)}.")
    return names


def checked_strength(strength: float) -> float:
    """Return `strength`.

    Raises:
        ValueError: Not in (0, 1].
    """
    if not 0 < strength <= 1:
        raise ValueError(f"perturb_strength must lie in (0, 1], got {strength}.")
    return strength
