"""Names of config sections and keys that several modules use."""

MODEL = "actor_rollout_ref.model"
MODEL_PATH = f"{MODEL}.path"
MODEL_POLICY = f"{MODEL}.policy"
MODEL_OPTIONS = f"{MODEL}.options"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
TRAIN_FILES = "data.train_files"
