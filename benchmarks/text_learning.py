"""Measures whether a language model improves on tasks with checkable answers.

    # GRPO, PPO and DAPO, three to five minutes each
    python -m benchmarks.text_learning two_digits --seeds 1 2 3
    # the quick check; only a hundred pairs exist
    python -m benchmarks.text_learning one_digit
    # the same steps with hf and with vllm
    python -m benchmarks.text_learning engines --seeds 1
    python -m benchmarks.text_learning tools --seeds 1
    python -m benchmarks.text_learning sandbox --seeds 1

Held-out questions are selected by a hash. `benchmarks.learning_studies` runs and measures the arms.
"""

from benchmarks.learning_studies import Arm, Study, run_studies

TINY_LM = "assets/tiny_lm"
GRPO = ("pipeline=grpo",)
LONG = 150  # training steps of dear episodes; the rise over the first twenty was not clear of noise
STUDIES = {
    "two_digits": Study(
        common=("env=math",),
        arms={"grpo": Arm(GRPO), "ppo": Arm(("pipeline=ppo",)), "dapo": Arm(("pipeline=dapo",))},
        shipped=TINY_LM,
        steps=500,
    ),
    "one_digit": Study(
        common=(
            "env=math",
            "env.tasks=[sums-1]",
            "env.kwargs.heldout_share=0",
            "actor_rollout_ref.actor.optim.lr=4e-4",
        ),
        arms={"grpo": Arm(GRPO)},
        shipped=TINY_LM,
        warm_start=(
            *("env.tasks=[sums-1]", f"actor_rollout_ref.model.path={TINY_LM}"),
            *("--updates=14", "--learning-rate=5e-4", "--batch-rows=32"),
        ),
        held_out=False,
        steps=240,
    ),
    "engines": Study(
        common=("env=math", *GRPO),
        arms={"hf": Arm(()), "vllm": Arm(("rollout=vllm",))},
        shipped=TINY_LM,
        steps=100,
    ),
    "tools": Study(
        common=("env=tools",),
        arms={"grpo": Arm(GRPO), "no_tools": Arm((*GRPO, "env.kwargs.tools=[]"))},
        shipped="assets/tiny_lm_tools",
        steps=LONG,
    ),
    "sandbox": Study(
        common=("env=sandbox",),
        arms={"grpo": Arm(GRPO)},
        shipped="assets/tiny_lm_sandbox",
        steps=LONG,
    ),
}

if __name__ == "__main__":
    run_studies(STUDIES, name="text_learning", description=__doc__)
