"""The configuration of section 10.1 of siiRL's architecture guide is read unchanged, except for its
paths.
"""

from pathlib import Path

import pytest

from envs.registry import env_spec
from siirl.params.parser import ParsedConfig, known_keys, parse
from siirl.preflight.config_checks import config_problems
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.unread import unread_in_domain

GUIDE_10_1 = """
# algorithm: Algorithm configuration
algorithm:
  adv_estimator: grpo        # grpo/gae/cpgd/gspo
  workflow_type: DEFAULT     # DEFAULT/DAPO/EMBODIED
  gamma: 1.0                 # Discount factor
  lam: 0.95                  # GAE lambda
  use_kl_in_reward: false    # Whether to use KL penalty in reward
  norm_adv_by_std_in_grpo: true

  kl_ctrl:
    type: fixed              # fixed/adaptive
    kl_coef: 0.001

# data: Data configuration
data:
  train_files: train.parquet
  train_batch_size: 512
  max_prompt_length: 2048
  max_response_length: 4096
  num_loader_workers: 4

# actor_rollout_ref: Model configuration
actor_rollout_ref:
  model:
    path: my_model
    dtype: bfloat16
    trust_remote_code: true

  actor:
    strategy: fsdp           # fsdp/megatron
    clip_ratio: 0.2
    entropy_coef: 0.01
    ppo_epochs: 1
    ppo_mini_batch_size: 256
    max_grad_norm: 1.0

    optim:
      lr: 1e-6
      weight_decay: 0.01
      scheduler: cosine_with_warmup
      warmup_ratio: 0.1

  rollout:
    name: vllm                # vllm/sglang/hf
    tensor_model_parallel_size: 2
    n: 8                      # GRPO group size
    temperature: 1.0
    top_p: 1.0
    mode: sync                # sync/async

# trainer: Trainer configuration
trainer:
  n_gpus_per_node: 8
  nnodes: 1
  total_epochs: 30
  save_freq: 10
  test_freq: 5
  val_before_train: false
  critic_warmup: 0

  project_name: my_project
  experiment_name: grpo_training
  logger: wandb             # wandb/tensorboard/console

# dag: DAG configuration
dag:
  custom_pipeline_fn: null   # Custom Pipeline function path
  enable_perf: false
  backend_threshold: 32
"""


@pytest.fixture
def guide(tmp_path: Path) -> ParsedConfig:
    file = tmp_path / "config.yaml"
    file.write_text(GUIDE_10_1)
    return parse(config_file=file)


def test_the_documents_configuration_is_read_as_written(guide: ParsedConfig) -> None:
    config = guide.config
    assert (config.data.train_batch_size, config.data.train_files) == (512, ("train.parquet",))
    assert (
        config.actor_rollout_ref.actor.optim.lr,
        config.actor_rollout_ref.rollout.tensor_model_parallel_size,
    ) == (1e-6, 2)
    assert (
        config.trainer.n_gpus_per_node,
        config.trainer.logger,
        config.dag.backend_threshold,
    ) == (8, ("wandb",), 32)


def test_its_workflow_type_chooses_the_pipeline_with_a_message(guide: ParsedConfig) -> None:
    assert guide.config.dag.pipeline == "grpo"
    assert "is read as pipeline=grpo" in guide.notices[0]


def test_its_files_choose_the_environment_with_a_message(guide: ParsedConfig) -> None:
    assert guide.config.env.name == "math"
    assert "without env= is read as env=math" in guide.notices[1]


def test_a_key_that_only_text_reads_is_refused_for_a_robot_with_the_reason(
    guide: ParsedConfig, tmp_path: Path
) -> None:
    assert config_problems(guide.config) == []
    config = parse(["env=metaworld"], config_file=tmp_path / "config.yaml").config
    problems = [
        *environment_problems(config, env_spec("metaworld")),
        *unread_in_domain(config, text=False),
    ]
    messages = [str(problem) for problem in problems]
    refused = {message.split("=")[0] for message in messages}
    assert refused == {
        "data.train_files",
        "data.num_loader_workers",
        "actor_rollout_ref.model.trust_remote_code",
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
    }


@pytest.mark.parametrize(
    ("place", "default"),
    [
        ("algorithm.adv_estimator", "grpo"),
        ("data.train_batch_size", 512),
        ("actor_rollout_ref.rollout.n", 8),
        ("actor_rollout_ref.actor.clip_ratio", 0.2),
        ("actor_rollout_ref.actor.ppo_epochs", 1),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 1),
        ("trainer.save_freq", 10),
        ("trainer.test_freq", 5),
    ],
)
def test_defaults_are_those_of_table_10_2(place: str, default: object) -> None:
    assert known_keys({})[place].default == default


def test_the_classes_are_importable_from_the_files_that_the_guide_names() -> None:
    from siirl.params.embodied_args import EmbodiedArguments
    from siirl.params.model_args import ActorArguments, AlgorithmArguments
    from siirl.params.profiler_args import ProfilerArguments
    from siirl.params.rollout_args import RolloutArguments
    from siirl.params.training_args import SiiRLArguments, TrainingArguments

    classes = (
        EmbodiedArguments,
        ActorArguments,
        AlgorithmArguments,
        RolloutArguments,
        ProfilerArguments,
        SiiRLArguments,
        TrainingArguments,
    )
    assert all(cls() == cls() for cls in classes)


def test_main_dag_is_the_same_command() -> None:
    import siirl.main_dag
    import siirl.train

    assert siirl.main_dag.main is siirl.train.main
