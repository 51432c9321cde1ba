"""Measures whether the VLA policy improves, and whether the gain depends on vision.

    python -m benchmarks.embodied_learning main --seeds 1 2 3

`main` has the demo's tasks: SRPO, SRPO with more prompts of tasks that the policy sometimes solves,
the 0/1 reward, and a blind control (images zeroed in warm start, training and evaluation), which
should gain little. `window` is the same with window-open, the fourth task that the shipped policy
was cloned on, which the blind control learns. `low_base` has tasks that a weaker warm start almost
never solves: the 0/1 reward, SRPO alone and with the demonstrations of the warm start as
references, and an oracle with the true distance; `low_base_defaults` is the same with today's
settings of the demo. `flow` trains the shipped flow policy on the demo's tasks by each algorithm
and with each kind of noise, and has a blind control; `tokens` trains the token policy for as many
steps. `rewards` compares SRPO with the 0/1 reward and the oracle in its pipeline, the oracle also
with the weight of failures of SRPO's paper. These three have today's settings.

All arms of a study train for the same number of steps. `benchmarks.learning_studies` runs and
measures them.
"""

from dataclasses import replace

from benchmarks.learning_studies import Arm, Study, run_studies

CLIPS = "{folder}/demonstrations.npz"  # beside a study's warm start
CLONED_TASKS = "env.tasks=[drawer-open,door-open,window-open]"
# The studies were measured before benchmarks.any_tasks changed the demo's settings.
BEFORE = (
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.target_kl=null",
    "actor_rollout_ref.rollout.noise_correlation=0",
)
NOISE = "actor_rollout_ref.model.options.noise"
BLIND = Arm(("experiment=blind",), warm_start=("--target-noise", "0", "trainer.blind=true"))
MAIN = Study(
    common=BEFORE,
    steps=190,
    arms={
        "srpo": Arm(()),
        "srpo_learnable": Arm(("data.task_sampling=learnable",)),
        "success": Arm(("reward=success",)),
        "blind": BLIND,
    },
)
# from drawer-open's 0 of 100 no reward got away in 100 steps, the oracle's neither
LOW_BASE_TASKS = ("env.tasks=[door-open,window-open]",)
LOW_BASE = Study(
    common=(*BEFORE, *LOW_BASE_TASKS),
    steps=100,
    arms={
        "srpo": Arm(()),
        "srpo_demonstrations": Arm((f"reward.demonstrations={CLIPS}",)),
        "success": Arm(("reward=success",)),
        "oracle": Arm(("reward=oracle",)),
    },
    # solves 1 of 200 episodes; with 175 updates it would be 31
    warm_start=("--target-noise", "0", "--updates", "170", "--clips", CLIPS, CLONED_TASKS),
)
ALGORITHMS = {
    "srpo": Arm(()),
    "grpo": Arm(("pipeline=grpo", "reward=success")),
    "ppo": Arm(("pipeline=ppo", "reward=success")),
}
STUDIES = {
    "main": MAIN,
    "window": replace(
        MAIN,
        common=(
            *BEFORE,
            "env.tasks=[drawer-open,button-press,window-open,button-press-topdown]",
        ),
    ),
    "flow": Study(
        common=("model=tiny_flow_vla",),
        steps=60,  # the demo's
        arms={
            **ALGORITHMS,
            **{
                noise: Arm((*ALGORITHMS["grpo"].overrides, f"{NOISE}={noise}"))
                for noise in ("learnt", "sde")
            },
            "blind": BLIND,
        },
        shipped="assets/tiny_flow_vla",
    ),
    "tokens": Study(common=(), steps=60, arms=ALGORITHMS),
    "rewards": Study(
        common=(),
        steps=60,
        arms={
            "srpo": Arm(()),
            "success": MAIN.arms["success"],
            "oracle": LOW_BASE.arms["oracle"],
            "oracle_alpha_08": Arm(("reward=oracle", "reward.alpha=0.8")),
        },
    ),
    "low_base": LOW_BASE,
    "low_base_defaults": replace(LOW_BASE, common=LOW_BASE_TASKS),
}

if __name__ == "__main__":
    run_studies(STUDIES, name="embodied_learning", description=__doc__)
