"""Does the policy get better, and does it get better by seeing?

    python -m benchmarks.embodied_learning main --seeds 1 2 3

`main` has the demo's tasks: SRPO, the 0/1 reward for the same number of training steps, PPO with a critic on the same 0/1, and a blind
control (images zeroed in warm start, training and evaluation) that should not gain much. `low_base` has tasks that a weaker warm start
almost never solves: the 0/1 reward, SRPO alone and with the demonstrations of the warm start as references, and an oracle that knows the
true distance.
How an arm is run and measured is told in `benchmarks.learning_studies`.
"""

from benchmarks.learning_studies import Arm, Study, run_studies

CLIPS = "{folder}/demonstrations.npz"  # beside a study's warm start
LOW_BASE_TASKS = "env.tasks=[drawer-open,door-open,window-open]"
STUDIES = {
    "main": Study(
        common=(),
        arms={
            "srpo": Arm(()),
            "success": Arm(("reward=success",), steps_of="srpo"),
            "ppo": Arm(("pipeline=ppo",), steps_of="srpo"),
            "blind": Arm(("experiment=blind",), steps_of="srpo", warm_start=("trainer.blind=true",)),
        },
    ),
    "low_base": Study(
        common=(LOW_BASE_TASKS,),
        arms={
            "srpo": Arm(()),
            "srpo_demonstrations": Arm((f"reward.demonstrations={CLIPS}",), steps_of="srpo"),
            "success": Arm(("reward=success",), steps_of="srpo"),
            "oracle": Arm(("reward=oracle",), steps_of="srpo"),
        },
        warm_start=("--updates", "150", "--clips", CLIPS, LOW_BASE_TASKS),
    ),
}

if __name__ == "__main__":
    run_studies(STUDIES, name="embodied_learning", description=__doc__, minutes=18.0)
