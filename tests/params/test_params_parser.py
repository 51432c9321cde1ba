"""Command line to a configuration: accepted forms, precedence, and messages of refusals."""

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from siirl.errors import ConfigError
from siirl.params import SiiRLArguments
from siirl.params.config_groups import options
from siirl.params.parser import known_keys, parse_config
from tests.params.refused import refusal


def test_no_arguments_give_the_demo_job() -> None:
    config = parse_config()
    assert (config.dag.pipeline, config.env.name, config.reward.name, config.cluster.mode) == (
        "embodied_srpo",
        "metaworld",
        "srpo",
        "ray",
    )
    assert config.trainer.total_steps is not None


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        ("dag.workflow_file=my/own graph.yaml", "own_graph"),
        ("dag.custom_pipeline_fn=my_package.graphs:mine", "mine"),
        ("dag.custom_pipeline_fn=my_package.graphs.mine", "mine"),
    ],
)
def test_a_users_graph_has_the_keys_own_defaults_and_names_the_run(graph: str, name: str) -> None:
    config, schema = parse_config(["env=metaworld", graph]), SiiRLArguments()
    assert (config.dag.pipeline, config.dag.shipped_graph, config.trainer.experiment_name) == (
        None,
        None,
        name,
    )
    assert config.algorithm == replace(schema.algorithm, workflow_type="DEFAULT")
    assert config.reward == schema.reward
    assert config.actor_rollout_ref.actor.clip_ratio_high is None
    assert parse_config([graph, "trainer.experiment_name=other"]).trainer.experiment_name == "other"


@pytest.mark.parametrize("graph", [":", "a:", f"a:{300 * 'b'}"])
def test_a_graph_without_a_usable_name_leaves_the_run_a_valid_one(graph: str) -> None:
    name = parse_config(["env=math", f"dag.custom_pipeline_fn={graph}"]).trainer.experiment_name
    assert name in ("run", 60 * "b")


def test_a_pipeline_beside_a_users_graph_gives_its_defaults() -> None:
    config = parse_config(["pipeline=dapo", "env=math", "dag.workflow_file=own.yaml"])
    assert (config.dag.pipeline, config.dag.shipped_graph, config.algorithm.overlong.penalty) == (
        "dapo",
        None,
        1.0,
    )


def test_a_removed_graph_leaves_the_demo_job() -> None:
    assert parse_config(["dag.workflow_file=own.yaml", "dag.workflow_file=null"]) == parse_config()


@pytest.mark.parametrize("group", ["reward", "experiment"])
def test_an_optional_group_may_be_left_out(group: str) -> None:
    assert parse_config([f"{group}=null"]) == parse_config()


def test_a_key_of_the_command_line_wins_over_the_groups() -> None:
    assert parse_config(["trainer.total_steps=3"]).trainer.total_steps == 3


def test_the_last_of_two_values_wins() -> None:
    assert parse_config(["trainer.seed=1", "trainer.seed=2"]).trainer.seed == 2


def test_gymnasium_is_trained_on_its_return_with_new_weights() -> None:
    config = parse_config(["pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"])
    assert (config.dag.pipeline, config.reward.name, config.env.id) == (
        "grpo",
        "return",
        "CartPole-v1",
    )
    assert config.actor_rollout_ref.model.path is None
    assert config.env.constructor_kwargs() == {"id": "CartPole-v1"}


def test_a_chosen_reward_wins_over_the_pipeline() -> None:
    assert parse_config(["pipeline=grpo", "reward=oracle"]).reward.name == "oracle"


def test_an_experiment_wins_over_the_other_groups() -> None:
    assert parse_config(["experiment=binary_reward"]).reward.name == "success"


def test_rollout_group_sets_the_rollout_of_the_policy() -> None:
    assert parse_config(["rollout=embodied"]).actor_rollout_ref.rollout.name == "embodied"


def test_constructor_kwargs_leave_out_the_pool_and_what_is_not_set() -> None:
    kwargs = parse_config(["env.kwargs.extra=1", "env.tasks=[door-open]"]).env.constructor_kwargs()
    assert kwargs == {
        **{"tasks": ("door-open",), "image_size": 64, "camera": "table", "max_episode_steps": 120},
        **{"render_quality": "fast", "extra": 1},
    }


def test_one_value_stands_for_a_list_of_one() -> None:
    assert parse_config(["trainer.logger=console"]).trainer.logger == ("console",)


def test_a_mapping_sets_several_keys() -> None:
    config = parse_config(["trainer={seed: 3, nnodes: 2}"])
    assert (config.trainer.seed, config.trainer.nnodes) == (3, 2)


def test_an_interpolation_refers_to_another_key() -> None:
    assert parse_config(["trainer.seed=7"]).data.seed == 7
    assert parse_config(["trainer.seed=7", "data.seed=1"]).data.seed == 1


def test_hydras_plus_is_understood() -> None:
    assert parse_config(["+env.kwargs.depth=2", "++trainer.seed=4"]).trainer.seed == 4


def test_the_configuration_can_be_pickled() -> None:
    config = parse_config(["trainer.seed=5"])
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group, names in options().items() for option in names]
)
def test_every_shipped_option_is_read_without_a_problem(group: str, option: str) -> None:
    assert isinstance(parse_config([f"{group}={option}"]), SiiRLArguments)


def test_hydra_and_omegaconf_stop_at_the_parser(repository: Path) -> None:
    importing = re.compile(r"^\s*(from|import) (hydra|omegaconf)", re.MULTILINE)
    files = [
        file
        for package in ("siirl", "envs", "vjepa", "pipelines")
        for file in (repository / package).rglob("*.py")
    ]
    assert sorted(file.name for file in files if importing.search(file.read_text())) == [
        "compose.py",
        "parser.py",
    ]


def test_parse_config_leaves_the_schema_as_it_was() -> None:
    parse_config(["env.kwargs.a=1", "actor_rollout_ref.model.options.b=2"])
    assert SiiRLArguments().env.kwargs == {}


def test_no_reason_of_a_default_points_to_a_document_that_no_reader_has() -> None:
    for place, key in known_keys({}).items():
        assert not re.search(r"\bguide\b|\bthe design\b", key.metadata["why"]), place


# Refusals


def test_a_misspelt_key_is_refused_with_the_nearest_and_its_neighbours() -> None:
    message = refusal("trainer.total_step=3")
    assert (
        "Unknown key 'trainer.total_step' (command line). Did you mean 'trainer.total_steps'?"
        in message
    )
    assert "max_minutes" in message


def test_a_misspelt_group_is_refused_with_the_known_ones() -> None:
    message = refusal("trainr.total_steps=3")
    assert "Did you mean 'trainer.total_steps'?" in message
    assert "actor_rollout_ref" in message


def test_a_key_without_its_group_is_refused_with_its_place() -> None:
    assert "Did you mean 'actor_rollout_ref.actor.optim.lr' or 'critic.optim.lr'?" in refusal(
        "lr=1e-5"
    )


def test_keys_of_all_groups_are_suggested_only_when_they_are_near() -> None:
    assert "Did you mean 'trainer.val_episodes'?" in refusal("episodes=5")
    # not dag.groups, the rank of lora, profiler.steps
    for far in ("runs=x", "rn=x", "actor_rollout_ref.actor.optim.rho=1"):
        assert "Did you mean" not in refusal(far)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("env.URL=x", "'env.url'"),
        ("ENV=math", "'env'"),
        ("Trainer.Total_Steps=3", "'trainer.total_steps'"),
    ],
)
def test_names_in_capitals_are_found(word: str, meant: str) -> None:
    assert f"Did you mean {meant}?" in refusal(word)


def test_a_misspelt_option_is_refused_with_the_known_ones() -> None:
    known = "dapo, embodied_srpo, grpo, ppo, remax"
    assert (
        refusal("pipeline=gropo")
        == f"Unknown pipeline (command line) 'gropo'. Did you mean 'grpo'? Known: {known}."
    )
    assert refusal("env=metaworldd").startswith(
        "Unknown env (command line) 'metaworldd'. Did you mean 'metaworld'? Known: custom, "
    )


@pytest.mark.parametrize("word", ["trainer.seed=-3", "trainer.seed='\"1\"'", "trainer.seed=one"])
def test_a_wrong_value_that_another_key_takes_is_reported_once(word: str) -> None:
    said = refusal(word)
    assert said.startswith("trainer.seed=")
    assert "data.seed" not in said


def test_a_wrong_type_names_the_place_and_an_example() -> None:
    assert (
        refusal("trainer.nnodes=two")
        == "trainer.nnodes=two (command line) must be an integer, for example trainer.nnodes=1."
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.nnodes=1.5", "must be an integer"),
        ("trainer.nnodes=true", "must be an integer"),
        ("trainer.nnodes=null", "must be an integer"),
        ("actor_rollout_ref.actor.optim.lr=fast", "must be a number"),
        ("trainer.blind=1", "must be true or false"),
        ("env.tasks=[1.5]", "must be a list of text or null: put each one in quotes."),
        (
            "actor_rollout_ref.rollout.stop=[a,true]",
            "stop=[a,true] (command line) must be a list of text: put each one in quotes.",
        ),
        ("actor_rollout_ref.rollout.stop=1.5", "must be a list of text: put it in quotes."),
        ("actor_rollout_ref.rollout.stop=[[a]]", "must be a list of text."),
        ("trainer=3", "Unknown trainer (command line) '3'"),
        (
            "data=3",
            "data=3 (command line): data holds keys, such as data.train_files; set one of them.",
        ),
    ],
)
def test_wrong_types_are_refused(override: str, message: str) -> None:
    assert message in refusal(override)


@pytest.mark.parametrize(
    ("override", "bound"),
    [
        ("data.train_batch_size=-4", "at least 1"),
        ("env.num_servers=0", "at least 1"),
        ("trainer.n_gpus_per_node=-1", "at least 1"),
        ("actor_rollout_ref.rollout.temperature=0", "larger than 0"),
        ("actor_rollout_ref.rollout.top_p=1.5", "at most 1"),
        ("reward.alpha=1.01", "at most 1"),
        ("actor_rollout_ref.actor.optim.lr=nan", "a finite number"),
    ],
)
def test_values_out_of_bounds_are_refused(override: str, bound: str) -> None:
    key = override.partition("=")[0]
    message = refusal(override)
    assert message.startswith(f"{key}=")
    assert f"must be {bound}." in message


def test_an_unknown_choice_is_refused_with_the_known_ones() -> None:
    message = refusal("data.task_sampling=learned")
    assert "learnable" in message
    assert "data.task_sampling" in message


def test_all_faults_are_reported_together() -> None:
    message = refusal(
        "trainer.nnodes=-1", "env.image_size=big", "actor_rollout_ref.model.dtype=int8"
    )
    assert message.startswith("3 problems:")
    assert all(
        place in message
        for place in ("trainer.nnodes", "env.image_size", "actor_rollout_ref.model.dtype")
    )


def test_a_refused_value_names_the_key_that_passed_it_on() -> None:
    said = refusal("pipeline=grpo", "data.seed='${trainer.experiment_name}'")
    assert said.startswith("data.seed=grpo (command line: ${trainer.experiment_name}) must be ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "nonsense",
            "'nonsense' (command line) is neither key=value nor group=option. Write no blanks "
            "around '='",
        ),
        (
            "trainer.seed =1",
            "'trainer.seed =1' (command line) is neither key=value nor group=option",
        ),
        ("env.tasks=[push", "close every bracket"),
        ("~trainer.seed", "cannot be deleted"),
        ("trainer.seed=1,2", "one run has one value"),
        ("env@foo=metaworld", "cannot be moved"),
        ("env=null", "env (command line) is empty: choose an option ("),
        ("trainer.seed=${nowhere}", "cannot be resolved: there is no key 'nowhere'."),
    ],
)
def test_hydra_syntax_that_is_not_supported_is_refused_with_a_sentence(
    override: str, message: str
) -> None:
    assert message in refusal(override)
    assert "EOF" not in refusal(override)  # the words of a parser generator


def test_an_option_a_file_or_a_folder_without_its_key_is_refused_with_the_key(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {seed: 1}")
    assert refusal("grpo").endswith("group=option. Did you mean pipeline=grpo?")
    assert refusal(str(file)).endswith(f"A file of keys is given by --config {file}.")
    assert refusal(str(tmp_path)).endswith(
        f"The folder of a run is checkpoint={tmp_path} for siirl evaluate and reward-check, and "
        f"trainer.resume={tmp_path} for siirl train."
    )
    assert "Write no blanks" in refusal("x" * 5000)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (f"trainer.total_steps={5000 * '9'}", "a number has more digits than Python reads"),
        (f"env.kwargs={{a: {5000 * '9'}}}", "a number has more digits than Python reads"),
        (f"env.tasks={3000 * '['}{3000 * ']'}", "it is nested too deeply"),
        (f"agents.{5000 * '9'}.env=math", "agent groups are numbered from 0"),
    ],
)
def test_a_value_beyond_pythons_limits_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_config([override])


def test_two_options_of_one_group_are_refused() -> None:
    assert "pipeline is chosen twice, grpo and embodied_srpo" in refusal(
        "pipeline=grpo", "pipeline=embodied_srpo"
    )
