"""Files and old names to a configuration: accepted forms, precedence, messages of refusals."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from siirl.errors import ConfigError, UnknownNameError
from siirl.params.compose import load_file
from siirl.params.config_groups import options
from siirl.params.parser import parse, parse_config, to_tree, to_yaml
from tests.params.refused import refusal

# Files


def test_a_file_wins_over_groups_and_the_command_line_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("pipeline: grpo\ntrainer:\n  seed: 3\n  total_steps: 9\n")
    config = parse_config(["trainer.seed=4"], config_file=file)
    assert (config.dag.pipeline, config.trainer.seed, config.trainer.total_steps) == ("grpo", 4, 9)


def test_a_group_of_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(parse_config()))
    config = parse_config(["env=gymnasium", "env.id=CartPole-v1"], config_file=file)
    assert config.env.constructor_kwargs() == {"id": "CartPole-v1"}


@pytest.mark.parametrize(
    "words",
    [
        "pipeline=ppo env=gymnasium trainer=mujoco_control",
        "pipeline=ppo trainer=mujoco_control env=gymnasium model=tiny_vla",
        "model=tiny_vla trainer=classic_control pipeline=ppo env=gymnasium",
        "pipeline=grpo env=metaworld trainer=smoke",
        "trainer=smoke env=metaworld model=tiny_flow_vla",
        "pipeline=embodied_srpo env=libero trainer=gpu_libero_one model=openvla_oft",
        "env=math pipeline=grpo",
        "env=tools pipeline=dapo trainer=laptop_text_long rollout=vllm reward=return",
        "actor_rollout_ref.actor.loss=gspo pipeline=grpo env=metaworld",
    ],
)
def test_a_file_changes_nothing_but_its_own_keys(tmp_path: Path, words: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {project_name: mine}\n")
    alone = parse_config([*words.split(), "trainer.project_name=mine"])
    assert to_tree(parse_config(words.split(), config_file=file)) == to_tree(alone)


@pytest.mark.parametrize("group", options())
def test_every_option_beside_a_file_is_what_it_is_alone(tmp_path: Path, group: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {project_name: mine}\n")
    for option in options()[group]:
        words = [f"{group}={option}", *(["env.id=x"] if option == "gymnasium" else [])]
        alone = parse_config([*words, "trainer.project_name=mine"])
        assert to_tree(parse_config(words, config_file=file)) == to_tree(alone), option


def test_a_group_of_the_command_line_keeps_what_only_the_file_sets(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "env: {kwargs: {reset_noise_scale: 0.1}}\n"
        "actor_rollout_ref: {model: {options: {width: 32}}, actor: {target_kl: 0.1}}\n"
        "trainer: {total_steps: 7, tags: [a]}\n"
    )
    words = ["pipeline=ppo", "env=gymnasium", "env.id=Hopper-v5", "trainer=mujoco_control"]
    config = parse_config(words, config_file=file)
    assert config.env.kwargs == {"reset_noise_scale": 0.1}
    assert config.actor_rollout_ref.model.options == {"width": 32, "normalize": True}
    assert config.actor_rollout_ref.actor.target_kl == 0.1  # the preset has none
    assert (config.trainer.total_steps, config.trainer.tags) == (489, ("a",))


def test_a_loss_of_a_file_keeps_its_own_bounds_beside_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("actor_rollout_ref: {actor: {loss: gspo}}\n")
    written = tmp_path / "written.yaml"
    written.write_text(to_yaml(parse_config(["pipeline=grpo"], config_file=file)))
    for source in (file, written):
        actor = parse_config(["pipeline=grpo"], config_file=source).actor_rollout_ref.actor
        assert (actor.loss, actor.clip_ratio_low, actor.clip_ratio_high) == ("gspo", None, None)


def test_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer:\n  total_step: 3\n")
    assert f"Unknown key 'trainer.total_step' ({file})" in refusal(config_file=file)


@pytest.mark.parametrize("content", ["- a\n- b\n", "12\n", "trainer\n", "[]\n", "false\n"])
def test_a_file_of_a_list_or_a_value_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert (
        refusal(config_file=file)
        == f"--config {file} must hold keys (trainer: ...), not a list or a value."
    )


@pytest.mark.parametrize("content", ["", "# trainer: {seed: 3}\n", "---\n", "{}\n"])
def test_a_file_without_content_sets_no_keys(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert to_tree(parse_config(["trainer.seed=4"], config_file=file)) == to_tree(
        parse_config(["trainer.seed=4"])
    )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(config_file=tmp_path / "nowhere.yaml")
    assert "is a folder: name a file in it" in refusal(config_file=tmp_path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            "trainer: {a: [\n",
            "expected the node content, but found '<stream end>' (line 2, column 1).",
        ),
        ("trainer:\n  seed: 1\n  seed: 2\n", "the key 'seed' is given twice (line 3, column 3)."),
    ],
)
def test_a_file_that_is_not_yaml_is_refused_in_one_line(
    tmp_path: Path, content: str, fault: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    refused = refusal(config_file=file)
    assert f"{file} cannot be read: {fault}" in refused
    assert "\n" not in refused


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            'trainer: {total_steps: "3"}',
            "trainer.total_steps='3' ({file}) is text, but must be an integer or null: leave out "
            "the quotes.",
        ),
        (
            'trainer: {total_steps: "null"}',
            "trainer.total_steps='null' ({file}) is text, but must be an integer or null: leave "
            "out the quotes.",
        ),
        (
            'trainer: {max_minutes: ".5"}',
            "trainer.max_minutes='.5' ({file}) is text, but must be a number or null: leave out "
            "the quotes.",
        ),
        (
            "trainer: {logger: '[console, tensorboard]'}",
            "trainer.logger='[console, tensorboard]' ({file}) is text, but must be a list of text: "
            "leave out the quotes.",
        ),
        (
            "trainer: {experiment_name: yes}",
            "trainer.experiment_name=true ({file}) must be text: put it in quotes.",
        ),
        (
            'trainer: {blind: "true"}',
            "trainer.blind='true' ({file}) is text, but must be true or false: leave out the "
            "quotes.",
        ),
        (
            'trainer: {max_minutes: "-1.5e-3"}',
            "trainer.max_minutes='-1.5e-3' ({file}) is text, but must be a number or null: leave "
            "out the quotes.",
        ),
        (
            'env: {kwargs: "{a: 1}"}',
            "env.kwargs='{a: 1}' ({file}) is text, but must be a mapping: leave out the quotes.",
        ),
        (
            "trainer: {seed: '${data}'}\ndata: {seed: 3}",
            "trainer.seed ({file}: ${data}) is a mapping, but must be an integer, for example "
            "trainer.seed=0.",
        ),
        (
            "trainer: {total_steps: '${oc.env:NOT_SET,7}'}",
            "trainer.total_steps='7' ({file}: ${oc.env:NOT_SET,7}) is text, but must be an "
            "integer or null: write ${oc.decode:...} around it.",
        ),
    ],
)
def test_a_number_in_quotes_is_refused_with_the_remedy(
    tmp_path: Path, content: str, sentence: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert refusal(config_file=file) == sentence.replace("{file}", str(file))


@pytest.mark.parametrize("written", ["${env:HOME}", "${HOME}", "${ENV:HOME}/runs"])
def test_a_reference_that_may_mean_an_environment_variable_is_refused_with_the_supported_form(
    written: str,
) -> None:
    told = refusal(f"trainer.output_dir={written}")
    assert told.startswith(f"trainer.output_dir={written} (command line) cannot be resolved: ")
    assert told.endswith(
        ", or for an environment variable ${oc.env:NAME}, with ${oc.decode:${oc.env:NAME}} for one "
        "that is no text."
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("trainer: {seed: '${nope}'}", "trainer.seed=${nope} ({file}): there is no key 'nope'"),
        ("trainer: {tags: ['${no}']}", "trainer.tags=[${no}] ({file}): there is no key 'no'"),
        ("env: {kwargs: {a: '${no}'}}", "env.kwargs.a=${no} ({file}): there is no key 'no'"),
        ("dag: {pipeline: '${nope}'}", "dag.pipeline=${nope} ({file}): there is no key 'nope'"),
        (
            "trainer: {seed: '${oc.env:NOT_SET}'}",
            "trainer.seed=${oc.env:NOT_SET} ({file}): Environment variable 'NOT_SET' not found",
        ),
        (
            "trainer: {seed: '${trainer.seed}'}",
            "trainer.seed=${trainer.seed} ({file}): Recursive interpolation detected",
        ),
        (
            "trainer: {seed: '${trainer}'}",
            "trainer.seed=${trainer} ({file}): Interpolation to parent node detected",
        ),
        (
            "data: {train_files: ['a_${trainer.experiment_name}_${trainer.nope}']}",
            "data.train_files=[a_${trainer.experiment_name}_${trainer.nope}] ({file}): "
            "there is no key 'trainer.nope'",
        ),
        (
            "trainer: {seed: '${data.seed}'}\ndata: {seed: '${nope}'}",
            "data.seed=${nope} ({file}): there is no key 'nope'",
        ),
        (
            "trainer: {seed: '${my-key}'}",
            "trainer.seed=${my-key} ({file}): there is no key 'my-key'",
        ),
        ("trainer: {seed: '${.nope}'}", "trainer.seed=${.nope} ({file}): there is no key 'nope'"),
        (
            "trainer: {seed: '${..data.nope}'}",
            "trainer.seed=${..data.nope} ({file}): there is no key 'data.nope'",
        ),
        (
            "trainer: {seed: '${.total_steps}', total_steps: '${nope}'}",
            "trainer.total_steps=${nope} ({file}): there is no key 'nope'",
        ),
        (
            "trainer: {seed: '${trainer[nope]}'}",
            "trainer.seed=${trainer[nope]} ({file}): there is no key 'trainer[nope]'",
        ),
        (
            "trainer: {seed: '${.total_steps} ${.save_freq}', total_steps: '${trainer[nope]}', "
            "save_freq: '${.test_freq}', test_freq: 1}",
            "trainer.total_steps=${trainer[nope]} ({file}): there is no key 'trainer[nope]'",
        ),
        (
            "trainer: {seed: '???'}",
            "trainer.seed=??? ({file}): Missing mandatory value: trainer.seed",
        ),
    ],
)
def test_an_interpolation_that_cannot_be_resolved_names_the_file_and_the_key_that_has_it(
    tmp_path: Path, content: str, fault: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    start, reason = fault.replace("{file}", str(file)).split("): ")
    remedy = (
        "Set the variable, or write a value"
        if "oc.env" in content
        else "Write a value, or the whole name of a key, as in ${trainer.seed}"
    )
    assert refusal(config_file=file) == f"{start}) cannot be resolved: {reason}. {remedy}."


def test_an_open_interpolation_is_refused_in_one_line_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {seed: '${trainer.'}")
    message = refusal(config_file=file)
    assert "(key trainer.seed). Write texts, numbers and lists, and close every ${." in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("trainer:\n", "trainer ({file}) is empty: choose an option (atari_like, "),
        (
            "actor_rollout_ref:\n  actor:\n",
            "actor_rollout_ref.actor ({file}) is empty: write keys below it, such as "
            "actor_rollout_ref.actor.strategy, or remove it.",
        ),
    ],
)
def test_an_empty_group_is_refused_with_the_remedy(
    tmp_path: Path, content: str, remedy: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert remedy.replace("{file}", str(file)) in refusal(config_file=file)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"],
        ["env.kwargs={a: 1, b: [x, null]}", "algorithm.adv_estimator=gspo"],
    ],
)
def test_the_printed_configuration_reads_back_as_the_same(
    tmp_path: Path, overrides: list[str]
) -> None:
    config = parse_config(overrides)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    again = parse(config_file=file)
    assert again.config == config
    assert again.notices == ()


def test_an_open_mapping_of_a_file_replaces_what_a_group_set(tmp_path: Path) -> None:
    first = parse_config(["actor_rollout_ref.model.options={bins: 32}"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(first).replace("bins: 32", "width: 8"))
    assert parse_config(config_file=file).actor_rollout_ref.model.options == {"width": 8}


def test_derived_keys_are_not_printed_and_are_filled_in() -> None:
    config = parse_config(["pipeline=grpo"])
    assert "workflow_type" not in to_tree(config)["algorithm"]
    assert (config.algorithm.workflow_type, config.actor_rollout_ref.model.model_type) == (
        "DEFAULT",
        "embodied",
    )
    assert parse_config(["env=math", "pipeline=grpo"]).actor_rollout_ref.model.model_type == "text"


# Old names


@pytest.mark.parametrize(
    ("workflow_type", "pipeline"), [("DEFAULT", "grpo"), ("EMBODIED", "embodied_srpo")]
)
def test_workflow_type_is_the_pipeline(workflow_type: str, pipeline: str) -> None:
    parsed = parse([f"algorithm.workflow_type={workflow_type}"])
    assert (parsed.config.dag.pipeline, parsed.config.algorithm.workflow_type) == (
        pipeline,
        workflow_type,
    )
    assert parsed.notices == (
        f"algorithm.workflow_type={workflow_type} (command line) is read as pipeline={pipeline}.",
    )


def test_an_old_name_that_contradicts_a_new_one_is_refused() -> None:
    assert "pipeline is chosen twice" in refusal(
        "algorithm.workflow_type=DEFAULT", "pipeline=embodied_srpo"
    )


def test_an_unknown_workflow_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Known: DAPO, DEFAULT, EMBODIED"):
        parse(["algorithm.workflow_type=DEFUALT"])


def test_gspo_is_grpos_advantage_with_gspos_loss() -> None:
    config = parse_config(["algorithm.adv_estimator=gspo"])
    assert (config.algorithm.adv_estimator, config.actor_rollout_ref.actor.loss) == ("grpo", "gspo")


def test_an_old_name_is_reported_once() -> None:
    assert len(parse(["actor_rollout_ref.model.model_type=embodied"] * 2).notices) == 1


@pytest.mark.parametrize("key", ["env", "env.name"])
def test_the_old_name_of_the_metaworld_environment_is_read(key: str) -> None:
    parsed = parse([f"{key}=mujoco"])
    assert parsed.config.env.name == "metaworld"
    assert parsed.notices == (f"{key}=mujoco (command line) is read as {key}=metaworld.",)


def test_old_keys_of_the_trajectory_reward_are_read() -> None:
    parsed = parse(["reward.window=9", "reward.bank_size=7", "reward.eps_scale=1.5"])
    reward = parsed.config.reward
    assert (reward.failure_window, reward.success_bank_size, reward.dbscan_eps_scale) == (9, 7, 1.5)
    assert parsed.notices[0] == "reward.window (command line) is read as reward.failure_window."


def test_old_keys_in_a_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("env: {name: mujoco}\nreward: {min_samples: 3}\n")
    config = parse(config_file=tmp_path / "old.yaml").config
    assert (config.env.name, config.reward.dbscan_min_samples) == ("metaworld", 3)


@pytest.mark.parametrize(("old", "new"), [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3")])
def test_old_names_of_kl_estimators(old: str, new: str) -> None:
    config = parse_config(
        [f"algorithm.kl_penalty={old}", f"actor_rollout_ref.actor.kl_loss_type={old}"]
    )
    assert (config.algorithm.kl_penalty, config.actor_rollout_ref.actor.kl_loss_type) == (new, new)


def test_questions_in_files_are_those_of_math_where_no_environment_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("data:\n  train_files: [questions.jsonl]\n")
    for parsed in (parse(config_file=file), parse(["data.train_files=[questions.jsonl]"])):
        assert parsed.config.env.name == "math"
        assert parsed.config.actor_rollout_ref.model.policy == "causal_lm"
        assert "without env= is read as env=math" in parsed.notices[-1]
    named = parse(["data.train_files=[questions.jsonl]", "env=sandbox"])
    assert (named.config.env.name, named.notices) == ("sandbox", ())
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(named.config))
    assert parse(config_file=again).config == named.config


def test_a_file_of_an_older_run_with_an_argument_of_the_environment_given_twice_is_read_as_it_was(
    tmp_path: Path,
) -> None:
    """The environment of such a run got the value in env.kwargs."""
    file = tmp_path / "config.yaml"
    file.write_text(
        to_yaml(parse_config(["env=gymnasium", "env.id=CartPole-v1", "env.max_episode_steps=5"]))
    )
    twice = file.read_text().replace(
        "  kwargs: {}\n", "  kwargs: {max_episode_steps: 3, sutton_barto_reward: true}\n"
    )
    assert "max_episode_steps: 5" in twice and "max_episode_steps: 3" in twice
    file.write_text(twice)
    parsed = parse([], config_file=file)
    assert parsed.config.env.constructor_kwargs() == {
        "id": "CartPole-v1",
        "max_episode_steps": 3,
        "sutton_barto_reward": True,
    }
    (notice,) = parsed.notices
    assert notice.startswith(
        f"env.kwargs.max_episode_steps=3 ({file}) is read as env.max_episode_steps"
    )
    assert (
        parse(["env.max_episode_steps=7"], config_file=file).config.env.constructor_kwargs()[
            "max_episode_steps"
        ]
        == 7
    )


def test_keys_of_the_file_that_a_typed_group_replaces_are_named(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {total_steps: 1, save_freq: 7, seed: 3}\nenv: {tasks: [sums-3]}\n")
    [notice] = parse(["env=math", "trainer.save_freq=9"], config_file=file).notices
    assert notice == (
        f"env=math on the command line replaces keys of {file}: trainer.total_steps (1 -> 500), "
        "env.tasks ([sums-3] -> [sums-2]). To keep the file's, choose the groups in the file."
    )
    file.write_text(f"env: math\n{file.read_text()}".replace("env: {tasks: [sums-3]}\n", ""))
    assert parse(["trainer.save_freq=9"], config_file=file).notices == ()


def test_all_keys_of_the_file_that_a_typed_group_replaces_are_named_and_the_others_stay(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "env: math\ntrainer: {total_steps: 1, save_freq: 7, test_freq: 1, val_episodes: 2, seed: 3}\n"
        "data: {train_batch_size: 1}\n"
    )
    parsed = parse(["trainer=gpus_text"], config_file=file)
    (notice,) = parsed.notices
    assert notice == (
        f"trainer=gpus_text on the command line replaces keys of {file}: trainer.total_steps "
        "(1 -> 500), trainer.save_freq (7 -> 50), trainer.test_freq (1 -> 16), "
        "trainer.val_episodes (2 -> 500), data.train_batch_size (1 -> 128). To keep the file's, "
        "choose the groups in the file."
    )
    assert (parsed.config.trainer.total_steps, parsed.config.trainer.seed) == (500, 3)


def test_a_defaults_list_of_hydra_is_refused_with_the_keys_that_choose_its_groups(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults:\n  - /pipeline: grpo\n  - override /env@env: math\n  - _self_\n")
    with pytest.raises(ConfigError, match=r"keys of the file: pipeline: grpo, env: math\.$"):
        parse([], config_file=file)


@pytest.mark.parametrize(
    "word",
    [
        "trainer.seed=007",
        "trainer.total_steps=08",
        "trainer.max_minutes=inf",
        "trainer.deterministic=yes",
        "trainer.deterministic=off",
        "trainer.seed=0x10",
        "trainer.seed=0b1",
        "trainer.seed=1:30",
        "trainer.seed=2024-13-45",
        "trainer.seed=--- 3",
        "trainer.seed='!!int x'",
        "trainer.seed='2024-01-01 99:00:00'",
        f"trainer.seed='{'9' * 5000}'",
        f"trainer.seed='{'[' * 5000}'",
        "trainer.seed='[[1]]'",
        "trainer.seed='[{a: 1}]'",
    ],
)
def test_text_that_is_no_number_is_not_said_to_have_quotes(word):
    with pytest.raises(ConfigError) as caught:
        parse(["pipeline=grpo", "env=math", word])
    assert "quotes" not in str(caught.value)


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize("text", ["0x10", "010", "1:30", "2024-13-45"])
def test_text_of_a_file_that_is_no_number_on_the_command_line_must_be_one(tmp_path, text, quote):
    file = tmp_path / "mine.yaml"
    file.write_text(f"trainer: {{seed: {quote}{text}{quote}}}\n")
    assert refusal(config_file=file) == (
        f"trainer.seed={text} ({file}) must be an integer, for example trainer.seed=0."
    )


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("018+-._:ex", min_size=1, max_size=5))
def test_a_number_or_text_of_a_file_is_that_of_the_command_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"a: {text}\n")
    try:
        read = load_file(file).a
        typed = OverridesParser.create().parse_override(f"a={text}").value()
    except (ConfigError, HydraException):
        assume(False)  # no single value
    assert repr(read) == repr(typed)
