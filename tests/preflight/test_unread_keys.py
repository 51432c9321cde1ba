"""A key on the command line that the job does not read is refused, with the jobs that read it.

A default of a config group is never refused.
"""

import itertools
from pathlib import Path

import pytest

from siirl.params.config_groups import options
from siirl.params.parser import ParsedConfig, parse, to_yaml
from siirl.preflight.unread import unread_in_domain, unread_problems

ACTOR, ROLLOUT, MODEL = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.model",
)
TEXT_ENVS = ("math", "reasoning_gym", "sandbox", "tools")


def messages(*words: str, config_file: Path | None = None) -> list[str]:
    """The keys of a command line that are refused because nothing reads them."""
    return unread(parse(words, config_file=config_file))


def unread(parsed: ParsedConfig) -> list[str]:
    text = parsed.config.env.name in TEXT_ENVS
    problems = unread_problems(parsed.config, named=parsed.named) + unread_in_domain(
        parsed.config, text=text, named=parsed.named
    )
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "pipeline=grpo reward=success reward.encoder=random",
            "reward.encoder=random is read by reward.name=srpo, srpo_released and video_value, not",
        ),
        (
            "env=metaworld env.perturb=[instruction] env.perturb_strength=0.5",
            "env.perturb_strength=0.5 is read by factors with a range, but env.perturb=[instruction]",
        ),
        (
            "pipeline=grpo reward.alpha=0.2",
            "reward.alpha=0.2 is read by reward.name=srpo, video_value and oracle, not by success",
        ),
        (
            f"env=libero model=smolvla {ROLLOUT}.noise_correlation=0.8",
            f"{ROLLOUT}.noise_correlation=0.8 is read by policies that draw numbers only for executed",
        ),
        (
            f"{ACTOR}.target_kl=0.01 {ACTOR}.ppo_epochs=1 {ACTOR}.ppo_mini_batch_size=12",
            f"{ACTOR}.target_kl=0.01 is read if an update has several optimiser steps",
        ),
        (
            "reward=srpo_released reward.failure_window=9",
            "reward.failure_window=9 is read by reward.name=srpo, video_value and oracle, not by",
        ),
        (
            "algorithm.overlong.penalty=0.5",
            "algorithm.overlong.penalty=0.5 is read by text jobs only, but env=metaworld is not",
        ),
        (
            "env=math pipeline=grpo env.tasks=[sums-3] data.train_files=[train.jsonl]",
            "env.tasks=[sums-3] is read by environments that generate or choose questions, but",
        ),
        (
            "env=math pipeline=grpo env.kwargs.wording=words data.train_files=[train.jsonl]",
            "env.kwargs.wording=words is read by generators of questions, but here "
            "the questions come from data.train_files: leave one of the two out.",
        ),
        (
            "env=sandbox pipeline=grpo env.kwargs.num_tests=20 env.kwargs.files=[a.jsonl]",
            "env.kwargs.num_tests=20 is read by generators of questions, but here "
            "the questions come from env.kwargs.files",
        ),
        (
            "trainer.project_name=mine",
            "trainer.project_name=mine is read by dashboards with projects, but trainer.logger",
        ),
        (
            "reward=success reward.frame_every=4",
            "reward.frame_every=4 is read by rewards that compare videos, but reward.name=success",
        ),
        (
            "env=math pipeline=grpo reward_model.path=x",
            "reward_model.path=x is read with reward.name=model, but it is success",
        ),
        (
            "env=math pipeline=grpo data.num_loader_workers=2",
            "data.num_loader_workers=2 is read with prompts from files",
        ),
        (
            "env=math pipeline=grpo data.heldout_share=0.1",
            "data.heldout_share=0.1 is read with prompts from files",
        ),
        (
            "env=math data.train_files=[a] data.val_files=[b] data.heldout_share=0.1",
            "data.heldout_share=0.1 is read without data.val_files",
        ),
        (
            "env=math pipeline=grpo trainer.total_epochs=2",
            "trainer.total_epochs=2 is read with prompts from files",
        ),
        (
            f"env=math pipeline=grpo {ROLLOUT}.tensor_model_parallel_size=2",
            "tensor_model_parallel_size=2 is read by rollout=vllm, not by",
        ),
        (
            f"env=math pipeline=grpo {ROLLOUT}.kv_cache_gib=4",
            "kv_cache_gib=4.0 is read by rollout=vllm",
        ),
        (
            f"env=math pipeline=grpo rollout=vllm {ROLLOUT}.server.deadline_s=4",
            "server.deadline_s=4.0 is read by rollout=server, not by "
            "actor_rollout_ref.rollout.name=vllm",
        ),
        (
            f"pipeline=dapo {ACTOR}.clip_ratio=0.1",
            "clip_ratio=0.1 is read only if actor_rollout_ref.actor.clip_ratio_low or "
            "clip_ratio_high is",
        ),
        (
            "algorithm.kl_ctrl.kl_coef=0.1",
            "kl_ctrl.kl_coef=0.1 is read with algorithm.use_kl_in_reward=true, but that is false: "
            "set it",
        ),
        (
            "algorithm.kl_ctrl.type=adaptive",
            "kl_ctrl.type=adaptive is read with algorithm.use_kl_in_reward=true",
        ),
        (
            "algorithm.kl_ctrl.horizon=5",
            "kl_ctrl.horizon=5 is read with algorithm.use_kl_in_reward=true",
        ),
        (
            "algorithm.kl_penalty=k3",
            "algorithm.kl_penalty=k3 is read with algorithm.use_kl_in_reward=true",
        ),
        (
            "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.horizon=5",
            "horizon=5 is read with algorithm.kl_ctrl.type=adaptive",
        ),
        (
            f"pipeline=dapo {ACTOR}.clip_ratio=0.2",
            "clip_ratio=0.2 is read only if actor_rollout_ref.actor.clip_ratio_low or "
            "clip_ratio_high is",
        ),
        (
            "algorithm.gamma=1.0",
            "algorithm.gamma=1.0 is read by gae and reinforce_plus_plus, not by dr_grpo: leave it "
            "out.",
        ),
        (
            f"{ACTOR}.kl_loss_coef=0.1",
            "kl_loss_coef=0.1 is read with actor_rollout_ref.actor.use_kl_loss=true",
        ),
        (
            f"{ACTOR}.kl_loss_type=k2",
            "kl_loss_type=k2 is read with actor_rollout_ref.actor.use_kl_loss=true",
        ),
        (
            "actor_rollout_ref.ref.path=x",
            "actor_rollout_ref.ref.path=x is read only if a KL term is used",
        ),
        (
            f"{MODEL}.lora.alpha=8",
            "lora.alpha=8.0 is read with actor_rollout_ref.model.lora.rank above 0",
        ),
        (
            f"{MODEL}.lora.target_modules=[head]",
            "lora.target_modules=[head] is read with actor_rollout_ref.model.lora.rank above 0",
        ),
        (
            f"{ACTOR}.importance.high=3",
            "importance.high=3.0 is read with actor_rollout_ref.actor.importance.level",
        ),
        (
            f"{ACTOR}.optim.warmup_ratio=0.3",
            "warmup_ratio=0.3 is read only if actor_rollout_ref.actor.optim.warmup_steps is null, "
            "but it is 4",
        ),
        (
            f"{ACTOR}.optim.scheduler=constant {ACTOR}.optim.warmup_steps=9",
            "warmup_steps=9 is read by schedules with a warm-up",
        ),
        (
            "pipeline=ppo critic.optim.warmup_ratio=0.3",
            "critic.optim.warmup_ratio=0.3 is read only if critic.optim.warmup_steps is null",
        ),
        (
            f"env=math pipeline=grpo {ACTOR}.micro_batch_size=4",
            "micro_batch_size=4 is read only if",
        ),
        (
            "pipeline=grpo algorithm.filter.success_low=0.2",
            "success_low=0.2 is read by pipeline=dapo and embodied_srpo",
        ),
        (
            "pipeline=grpo algorithm.filter.drop_truncated=true",
            "drop_truncated=true is read by pipeline=dapo and embodied_srpo",
        ),
        (
            "trainer.val_episodes=0 trainer.val_samples=4",
            "trainer.val_samples=4 is read by evaluations, but trainer.val_episodes=0",
        ),
        (
            "trainer.val_episodes=0 trainer.val_before_train=true",
            "trainer.val_before_train=true is read by evaluations, but trainer.val_episodes=0",
        ),
        (
            "trainer.val_episodes=0 trainer.test_freq=3",
            "trainer.test_freq=3 is read by evaluations, but trainer.val_episodes=0",
        ),
        (
            "trainer.val_episodes=0 trainer.record_val_episodes=3",
            "trainer.record_val_episodes=3 is read by evaluations",
        ),
        (
            "dag.backend_threshold=2",
            "dag.backend_threshold=2 is read by jobs of several ranks, and this job has one",
        ),
        (
            "pipeline=dapo algorithm.filter.name=truncation algorithm.filter.success_low=0.3",
            "success_low=0.3 is read with algorithm.filter.name=null or success_band, not with "
            "truncation",
        ),
        (
            "pipeline=dapo algorithm.filter.name=truncation algorithm.filter.metric=reward",
            "metric=reward is read with algorithm.filter",
        ),
        (
            "pipeline=dapo algorithm.filter.name=success_band algorithm.filter.metric=reward",
            "metric=reward is read with algorithm.filter.name=null or zero_variance, not with "
            "success_band",
        ),
        (
            "algorithm.filter.name=success_band algorithm.filter.drop_truncated=true",
            "drop_truncated=true is read with algorithm.filter.name=null, not with success_band",
        ),
        *(
            (f"reward=srpo_released reward.{key}", "by reward.name=srpo")
            for key in (
                "alpha=0.2",
                "success_bank_size=9",
                "failure_window=9",
                "min_failure_window=3",
                "dbscan_min_samples=3",
                "dbscan_eps_scale=2.5",
                "demonstrations=a",
            )
        ),
        ("profiler.steps=[3]", "profiler.steps=[3] is read with profiler.enable=true"),
        (
            "env=math pipeline=grpo reward.timeout_s=3",
            "reward.timeout_s=3.0 is read by reward functions, but none are configured",
        ),
        (
            "env=math pipeline=grpo custom_reward_function.name=json:loads reward.num_workers=2",
            "reward.num_workers=2 is read by reward.manager=parallel and dapo",
        ),
        (
            "env=math pipeline=grpo custom_reward_function.name=json:loads reward.name=return",
            "reward.name=return is read without reward.functions and custom_reward_function",
        ),
        (
            f"env=math pipeline=grpo {MODEL}.options={{bins: 8}}",
            "is read by robot jobs only, but env=math is text: the model folder defines",
        ),
        (
            "env=math pipeline=grpo trainer.record_episodes=3",
            "trainer.record_episodes=3 is read by robot jobs only",
        ),
        (
            f"env=math pipeline=grpo {ACTOR}.ratio_level=decision",
            "ratio_level=decision is read by robot jobs only, but env=math is text: each token",
        ),
        (
            "env=math pipeline=grpo actor_rollout_ref.embodied.recorder_size=64",
            "recorder_size=64 is read by robot jobs only",
        ),
        (
            "trainer.record_episodes=0 trainer.record_val_episodes=0 "
            "actor_rollout_ref.embodied.recorder_size=64",
            "only if videos are recorded",
        ),
        (
            "data.num_loader_workers=2",
            "data.num_loader_workers=2 is read by text jobs only, but env=metaworld is not a text environment",
        ),
        (
            "critic.optim.weight_decay=0.5",
            "critic.optim.weight_decay=0.5 is read only with a critic, but pipeline=embodied_srpo "
            "has none",
        ),
    ],
)
def test_a_key_that_nothing_reads_is_refused_with_its_reader(words: str, expected: str) -> None:
    (found,) = messages(*words.replace("{bins: 8}", "{bins:8}").split())
    assert expected in found


@pytest.mark.parametrize(
    "words",
    [
        "env=metaworld env.perturb=[instruction,camera] env.perturb_strength=0.5",
        "reward.encoder=random reward.alpha=0.5",
        "reward=oracle reward.alpha=0.5",
        "pipeline=grpo reward.name=json:loads reward.encoder=null reward.alpha=0.5",
        "env=math pipeline=grpo reward.name=model reward_model.path=x",
        "env=math pipeline=grpo env.kwargs.wording=words",
        # The wording is that of the group model=tiny_lm_sandbox.
        "env=sandbox pipeline=grpo env.kwargs.files=[a.jsonl]",
        "env=math data.train_files=[a] data.num_loader_workers=2 data.heldout_share=0.1 "
        "trainer.total_epochs=2",
        f"env=math pipeline=grpo rollout=vllm {ROLLOUT}.tensor_model_parallel_size=2",
        f"env=math pipeline=grpo rollout=server {ROLLOUT}.server.deadline_s=4 "
        f"{ROLLOUT}.update_weights_bucket_megabytes=64",
        f"pipeline=grpo {ACTOR}.clip_ratio=0.1",
        f"pipeline=dapo {ACTOR}.clip_ratio=0.1 {ACTOR}.clip_ratio_low=null "
        f"{ACTOR}.clip_ratio_high=null",
        "pipeline=ppo algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive "
        "algorithm.kl_ctrl.horizon=5 algorithm.kl_penalty=k3",
        f"{ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0.1 actor_rollout_ref.ref.path=x",
        f"{ACTOR}.optim.warmup_steps=null {ACTOR}.optim.warmup_ratio=0.3",
        f"pipeline=ppo {ACTOR}.optim.scheduler=constant",
        f"env=math pipeline=grpo {ACTOR}.micro_batch_tokens=null {ACTOR}.micro_batch_size=4",
        "env=math pipeline=grpo trainer.record_episodes=0 trainer.record_val_episodes=0",
        f"env=math pipeline=grpo {ACTOR}.ratio_level=token",
        "pipeline=grpo dag.custom_pipeline_fn=mine:graph critic.optim.lr=0.1 "
        "algorithm.filter.success_low=0.2",
        "algorithm.adv_estimator=my_own algorithm.gamma=0.9",
        "profiler.enable=true profiler.steps=[3]",
        "trainer.val_episodes=0 trainer.val_before_train=false trainer.test_freq=-1 "
        "trainer.record_val_episodes=0",
        "pipeline=dapo algorithm.filter.name=success_band algorithm.filter.success_low=0.3",
        "pipeline=dapo algorithm.filter.name=zero_variance algorithm.filter.metric=reward",
        "pipeline=dapo algorithm.filter.name=mine:rule algorithm.filter.metric=reward "
        "algorithm.filter.success_low=0.3",
        "trainer.n_gpus_per_node=2 dag.backend_threshold=2",
        # Defaults that ask for nothing.
        "pipeline=grpo algorithm.filter.drop_truncated=false reward_model.path=null "
        "trainer.critic_warmup=0 data.val_files=[]",
    ],
)
def test_a_key_that_is_read_is_accepted(words: str) -> None:
    assert messages(*words.split()) == []


COMBINATIONS = [
    (f"pipeline={pipeline}", f"env={env}")
    for pipeline, env in itertools.product(
        ("dapo", "embodied_srpo", "grpo", "ppo", "remax"),
        ("metaworld", "libero", "gymnasium", *TEXT_ENVS),
    )
]
OPTIONS = [
    *((f"reward={reward}",) for reward in options()["reward"]),
    *((f"experiment={experiment}",) for experiment in options()["experiment"]),
    *((f"trainer={trainer}",) for trainer in options()["trainer"] if "text" not in trainer),
    *(("env=math", f"rollout={rollout}") for rollout in ("hf", "vllm", "server")),
    ("env=libero", "model=openvla_oft"),
    ("cluster=local",),
]


@pytest.mark.parametrize("words", [*COMBINATIONS, *OPTIONS], ids=" ".join)
def test_defaults_of_groups_are_not_refused_and_a_runs_configuration_is_read_again(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    parsed = parse(words)
    assert unread(parsed) == []
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(parsed.config))
    again = parse(config_file=file)
    assert again.config == parsed.config
    assert unread(again) == []


def test_a_value_that_a_group_has_is_refused_where_the_command_line_names_it(
    tmp_path: Path,
) -> None:
    """reward.alpha=0.2 is a default of embodied_srpo: refused if typed, and accepted in the file of
    a run of reward=success.
    """
    assert len(messages("reward=success", "reward.alpha=0.2")) == 1
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(parse(["reward=success"]).config))
    assert messages(config_file=file) == []
    file.write_text("reward: {name: success, alpha: 0.3}\n")
    assert len(messages(config_file=file)) == 1
