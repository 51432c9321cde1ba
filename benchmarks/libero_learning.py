"""Does SRPO from the shipped warm start learn LIBERO's tasks, and more than the 0/1 reward teaches?

    python -m benchmarks.libero_learning main --seeds 1 --minutes 120 --episodes 20

Five tasks of libero_object on stand-ins, so the numbers are not LIBERO scores. SRPO, and the 0/1 reward for the same number of training
steps; both from assets/tiny_vla_libero. How an arm is run and measured is told in `benchmarks.learning_studies`: a finished arm is not run
again, and one that was cut off goes on from its newest checkpoint by `python -m siirl.train ... trainer.resume=FOLDER`.

Held-out episodes start from the ten initial states of a task that training never starts from, taken in turn: twenty episodes are two of
sampled actions from each, and the most likely actions give the same episode twice.
"""

from benchmarks.learning_studies import Arm, Study, run_studies

STUDIES = {
    "main": Study(
        common=("env=libero", "env.assets=stand_in"),
        arms={"srpo": Arm(()), "success": Arm(("reward=success",), steps_of="srpo")},
        shipped="assets/tiny_vla_libero",
    ),
}

if __name__ == "__main__":
    run_studies(STUDIES, name="libero_learning", description=__doc__, minutes=60.0)
