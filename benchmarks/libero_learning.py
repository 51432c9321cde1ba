"""Compares SRPO with the 0/1 reward on LIBERO's tasks, from the shipped warm start.

    python -m benchmarks.libero_learning main --seeds 1 --episodes 20
    # continues from there, with an entropy penalty
    python -m benchmarks.libero_learning longer --seeds 1 --episodes 20

Five tasks of libero_object on stand-ins, so the numbers are not LIBERO scores. SRPO and the 0/1
reward train for as many steps, and so for as many episodes. Environment steps of the two are close
and not equal, because an episode ends at its success; each arm's result has its own count.
`benchmarks.learning_studies` runs and measures the arms.

When the command is repeated, a finished arm is not run again, and an unfinished one continues from
its last checkpoint. `--arms srpo` runs one alone.

Training starts from forty initial states of each task, and the tests from the ten others
(`env.states=split`). Those are taken in turn: twenty episodes of sampled actions are two from each.
The most likely actions give the same episode twice, so with more than ten episodes their intervals
are too narrow: judge by sampled actions.
"""

from dataclasses import replace

from benchmarks.learning_studies import Arm, Study, run_studies

MAIN = Study(
    common=("env=libero", "env.assets=stand_in"),
    steps=80,
    arms={"srpo": Arm(()), "success": Arm(("reward=success",))},
    shipped="assets/tiny_vla_libero",
)
STUDIES = {
    "main": MAIN,
    "longer": replace(
        MAIN,
        steps=160,
        goes_on_from="main",
        common=(*MAIN.common, "actor_rollout_ref.actor.entropy_coef=-0.005"),
    ),
}

if __name__ == "__main__":
    run_studies(STUDIES, name="libero_learning", description=__doc__)
