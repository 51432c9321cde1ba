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
  15°), moves away to at most twice its distance, or turns by up to 10° about two axes [1];
- `light`: 0.4 to 2 times the intensity [2]; up to 0.1 is added to or taken from each colour
  channel, and the direction changes by up to 20° [3];
- `texture`: the work surface (a table top, or the floor) gets one random colour, in 43 % of the
  episodes [1] the other large surfaces (walls, the floor around a table) get one each; channels
  are drawn from 0.25 to 1 [4];
- `object_pose`: movable objects are displaced together, uniformly in a disc of 5 cm [1];
- `instruction`: the sentence gets other verbs (`envs.rewording`) and the form of a request [5];
- `distractors`: one to five solids lie in free places of the table, their centres at least 10 cm
  apart [1, 2]; the arm passes through them. Shapes, colours and sizes are siirl's own.

Sources of the ranges:

1. LIBERO-Plus (arXiv 2510.13626, github.com/sylvestf/LIBERO-plus at 4976dc3), which lists its
   tasks in `task_classification.json`. Of 1,599 camera poses 62 % orbit, 20 % change the distance
   and 18 % turn. Of 1,076 texture variants 57 % have another table or floor, 43 % also another
   wall. `_level5_` of libero_spatial and libero_10 moves each object and fixture by up to 5 cm,
   uniformly in a disc (libero_goal: 10 cm, libero_object: 15 cm); a level is a strength of 0.2.
   `_add_1` to `_add_30` add one to five objects, whose centres are 10 cm apart or more. Its light
   variants are not in the repository, so their ranges are not used.
2. LIBERO-Infinity (github.com/KE7/libero-infinity at b407b51): `lighting_perturbation.scenic`,
   `distractor_perturbation.scenic`.
3. robosuite 1.4: `DomainRandomizationWrapper`.
4. Colosseum (arXiv 2402.08191, github.com/robot-colosseum/robot-colosseum at 098a910):
   `table_color`.
5. Categories of LIBERO-Para (arXiv 2603.28301), `lexical/same_polarity` and
   `pragmatical/embedded_imperative`. LIBERO-Plus has requests in 450 of 1,537 sentences, and
   LIBERO-PRO (arXiv 2510.03827) replaces verbs. There is no numeric range.

All of them have prepared scenes or sentences. Here they are generated, so scores are not comparable
with theirs.

Left out: LIBERO-Plus' sensor noise, initial poses of the robot, textures from image files, and its
sentences that describe objects, distract or need reasoning.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
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
LARGEST_DISPLACEMENT_M = 0.05
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
        angle = generator.uniform(0, 2 * math.pi)
        radius = self.strength * LARGEST_DISPLACEMENT_M * math.sqrt(generator.random())
        return radius * np.array([math.cos(angle), math.sin(angle)])


def checked_factors(factors: Any, *, known: Sequence[str] = FACTORS) -> tuple[str, ...]:
    """Return `factors` as a tuple.

    Raises:
        ValueError: Not a list of names, an unknown name, or a name given twice.
    """
    if isinstance(factors, str | Mapping) or not isinstance(factors, Iterable):
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
