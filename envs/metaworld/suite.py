"""The fifty Meta-World tasks by name, each with its instruction for the policy.

Meta-World has no instructions, so the sentences are ours. Names are Meta-World's without the
version suffix: `drawer-open` stands for `drawer-open-v3`, and both are accepted. This module
imports neither MuJoCo nor Meta-World, so planners can read it on any machine.
"""

from envs.names import listed, nearest

VERSION_SUFFIX = "-v3"

INSTRUCTIONS: dict[str, str] = {
    "assembly": "put the ring of the wrench over the peg",
    "basketball": "drop the ball through the hoop",
    "bin-picking": "move the block into the other bin",
    "box-close": "put the lid on the box",
    "button-press": "press the button on the front of the box",
    "button-press-topdown": "press the button on top of the box",
    "button-press-topdown-wall": "reach over the wall and press the button on top of the box",
    "button-press-wall": "reach over the wall and press the button on the front of the box",
    "coffee-button": "press the button of the coffee machine",
    "coffee-pull": "pull the mug away from the coffee machine",
    "coffee-push": "push the mug under the coffee machine",
    "dial-turn": "turn the dial",
    "disassemble": "lift the ring of the wrench off the peg",
    "door-close": "close the door of the safe",
    "door-lock": "lock the door of the safe",
    "door-open": "open the door of the safe",
    "door-unlock": "unlock the door of the safe",
    "drawer-close": "close the green drawer",
    "drawer-open": "open the green drawer",
    "faucet-close": "turn the faucet off",
    "faucet-open": "turn the faucet on",
    "hammer": "drive the nail in with the hammer",
    "hand-insert": "put the block into the hole with the gripper",
    "handle-press": "press the handle down",
    "handle-press-side": "press the handle on the side down",
    "handle-pull": "pull the handle up",
    "handle-pull-side": "pull the handle on the side up",
    "lever-pull": "pull the lever up",
    "peg-insert-side": "insert the peg into the hole of the box",
    "peg-unplug-side": "pull the peg out of the box",
    "pick-out-of-hole": "lift the puck out of the hole and bring it to the marker",
    "pick-place": "pick up the puck and bring it to the marker",
    "pick-place-wall": "lift the puck over the wall and bring it to the marker",
    "plate-slide": "slide the plate forward into the goal",
    "plate-slide-back": "slide the plate back out of the goal",
    "plate-slide-back-side": "slide the plate sideways out of the goal",
    "plate-slide-side": "slide the plate sideways into the goal",
    "push": "push the puck to the marker",
    "push-back": "pull the block back to the marker",
    "push-wall": "push the puck around the wall to the marker",
    "reach": "move the gripper to the marker",
    "reach-wall": "move the gripper over the wall to the marker",
    "shelf-place": "put the block on the shelf",
    "soccer": "push the ball into the goal",
    "stick-pull": "pull the bottle towards you with the stick",
    "stick-push": "push the bottle away with the stick",
    "sweep": "sweep the block off the table",
    "sweep-into": "sweep the block into the hole",
    "window-close": "slide the window closed",
    "window-open": "slide the window open",
}
"""Task name to instruction, for every task of Meta-World V3."""

FIXED = frozenset(
    (
        "assembly",
        "pick-out-of-hole",
        "plate-slide",
        "plate-slide-back",
        "plate-slide-back-side",
        "plate-slide-side",
    )
)
"""Tasks without a horizontal axis along which Meta-World draws both object and goal. So the
perturbation `object_pose` cannot displace them together."""


def task_name(name: str) -> str:
    """The canonical form of `name`: `drawer-open-v3` and `drawer-open` are the same task.

    Raises:
        ValueError: Meta-World has no such task; the message lists the known ones and suggests the
            nearest.
    """
    canonical = name.removesuffix(VERSION_SUFFIX)
    if canonical in INSTRUCTIONS:
        return canonical
    known = tuple(INSTRUCTIONS)
    raise ValueError(
        f"Unknown Meta-World task {name!r}.{nearest(canonical, known)} Known: "
        f"{listed(canonical, known)}."
    )
