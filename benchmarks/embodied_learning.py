"""Does the policy get better, and does it get better by seeing?

    python -m benchmarks.embodied_learning main --seeds 1 2 3

`main` has the demo's tasks: SRPO, the 0/1 reward, and a blind control (images zeroed in warm start,
training and evaluation) that should not gain much. `low_base` has tasks that a weaker warm start almost never solves: the 0/1 reward, SRPO
alone and with the demonstrations of the warm start as references, and an oracle that knows the true distance.
All arms of a study train for as many steps. How one is run and measured is told in `benchmarks.learning_studies`.
"""

from benchmarks.learning_studies import Arm, Study, run_studies

CLIPS = "{folder}/demonstrations.npz"  # beside a study's warm start
CLONED_TASKS = "env.tasks=[drawer-open,door-open,window-open]"  # door-open is not trained: that policy solves it in 22 % of episodes
STUDIES = {
    "main": Study(
        common=(),
        steps=190,
        arms={
            "srpo": Arm(()),
            "success": Arm(("reward=success",)),
            "blind": Arm(("experiment=blind",), warm_start=("trainer.blind=true",)),
        },
    ),
    "low_base": Study(
        common=("env.tasks=[drawer-open,window-open]",),
        steps=100,
        arms={
            "srpo": Arm(()),
            "srpo_demonstrations": Arm((f"reward.demonstrations={CLIPS}",)),
            "success": Arm(("reward=success",)),
            "oracle": Arm(("reward=oracle",)),
        },
        warm_start=("--updates", "175", "--clips", CLIPS, CLONED_TASKS),  # with 150 it solves none of 120 episodes
    ),
}

if __name__ == "__main__":
    run_studies(STUDIES, name="embodied_learning", description=__doc__)
