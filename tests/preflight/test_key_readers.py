"""Every key is read by every job, or has a condition of its reading."""

from siirl.algos import ADVANTAGES
from siirl.params.env_args import POOL_KEYS
from siirl.params.parser import known_keys
from siirl.params.registered_names import ESTIMATORS, GROUP_ESTIMATORS
from siirl.preflight.key_readers import READERS, ROBOTS_ONLY

# Read by every job, or by every job of the key's domain. Those whose value alone may be wrong there
# are refused by siirl.preflight.config_checks, critic_checks, environment_checks, or by the loss
# (clip_ratio_low, _high, _c and loss_options), the environment, the grader.
OF_GROUPS = {
    "algorithm": "adv_estimator use_kl_in_reward overlong.penalty overlong.buffer",
    "data": "train_files train_batch_size task_weights task_sampling seed max_prompt_length "
    "max_response_length overlong_prompts",
    "actor_rollout_ref.model": "policy path dtype trust_remote_code gradient_checkpointing "
    "lora.rank lora.dropout",
    "actor_rollout_ref.actor": "strategy loss loss_agg_mode loss_options importance.level "
    "clip_ratio_low clip_ratio_high clip_ratio_c entropy_coef ppo_epochs ppo_mini_batch_size "
    "micro_batch_tokens max_grad_norm use_kl_loss offload_optimizer use_torch_compile "
    "optim.lr optim.weight_decay optim.scheduler optim.beta1 optim.beta2 optim.eps",
    "actor_rollout_ref.rollout": "name n n_steps temperature top_p top_k workflow stop "
    "max_log_prob_gap",
    "custom_reward_function": "path name",
    "reward": "functions max_failed_share",
    "trainer": "nnodes n_gpus_per_node gpu_memory_gib threads_per_rank total_steps max_minutes "
    "max_staleness save_freq val_episodes experiment_name hang_minutes async_save grace_s logger "
    "resume output_dir seed deterministic save_rollouts blind",
    "dag": "groups pipeline workflow_file custom_pipeline_fn enable_perf",
    "cluster": "mode address",
    "profiler": "enable",
    "env": " ".join(POOL_KEYS),
}
ALWAYS_READ = {"agents", "user_groups", "user_modules"} | {
    f"{group}.{name}" for group, names in OF_GROUPS.items() for name in names.split()
}


def test_every_key_is_always_read_or_says_when() -> None:
    """A new key belongs to one of these."""
    keys = {place for place, key in known_keys({}).items() if not key.metadata["derived"]}
    of_environments = {
        place for place in keys if place.startswith("env.")
    } - ALWAYS_READ  # which refuse what they do not take
    sometimes = READERS.keys() | ROBOTS_ONLY.keys()
    assert keys == ALWAYS_READ | sometimes | of_environments
    assert ALWAYS_READ & sometimes == set()


def test_estimators_are_those_that_siirl_registers() -> None:
    own = {
        name
        for name, function in ADVANTAGES.items()
        if function.__module__.startswith("siirl.algos.")
    }
    assert set(ESTIMATORS) == own
    assert set(GROUP_ESTIMATORS) <= own
