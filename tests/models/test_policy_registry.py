"""Policies are looked up in one dict; a new built-in one is a function and one entry."""

import subprocess
import sys

import pytest

from envs.registry import env_spec
from siirl.errors import CheckpointError, ConfigError, UnknownNameError
from siirl.models.policy_loader import build_policy, save_policy
from siirl.params.policies import POLICIES
from siirl.params.references import load_reference

SPEC = env_spec("gymnasium", id="CartPole-v1")
HERE = "test_policy_registry"


def make_house_policy(spec, path, *, weights=True, width=8):
    return load_reference(POLICIES["tiny_vla"], place="test")(
        spec, path, weights=weights, width=width
    )


def make_nothing(spec, path, **options):
    return "no policy"


def make_policy_without(spec, path, *, member):
    policy = make_house_policy(spec, path)
    delattr(policy, member)
    return policy


def make_policy_with_length(spec, path, *, length):
    policy = make_house_policy(spec, path)
    policy.chunk_length = length
    return policy


def build(name, **options):
    return build_policy(name, path=None, spec=SPEC, seed=0, options=options)


def test_reading_the_table_of_policies_imports_no_torch():
    code = "import sys, siirl.params.policies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_line_names_a_function(name):
    assert callable(load_reference(POLICIES[name], place=name))


def test_a_new_built_in_policy_needs_one_line(monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    monkeypatch.setitem(POLICIES, "house", f"{HERE}:make_house_policy")
    assert build("house", width=16).config.width == 16


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError,
        match=r"Did you mean 'tiny_vla'\? Known: control_policy, module:name, openvla, "
        r"openvla_oft, pi0, pi05, smolvla, tiny_flow_vla, tiny_vla",
    ):
        build("tiny_vlaa")


@pytest.mark.parametrize("name", POLICIES)
def test_an_unknown_option_is_refused_with_its_key_and_the_known_ones(name):
    with pytest.raises(UnknownNameError) as refused:
        build(name, chunk_lenght=3)
    said = str(refused.value)
    assert said.startswith("Unknown option (actor_rollout_ref.model.options) 'chunk_lenght'.")
    assert "()" not in said and "weights" not in said


@pytest.mark.parametrize(("name", "nearest"), [("pi0", "steps"), ("pi05", "pad_state")])
def test_options_of_all_readers_are_proposed(name, nearest):
    with pytest.raises(UnknownNameError, match=f"Did you mean '{nearest}'"):
        build(name, **{f"{nearest}s": 3})


def test_an_option_named_like_an_argument_of_the_maker_is_unknown():
    with pytest.raises(UnknownNameError, match=r"options\) 'path'\..*Known: bins, chunk_length"):
        build_policy("tiny_vla", path=None, spec=SPEC, seed=0, options={"path": "x"})


def test_a_function_that_makes_no_policy_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    with pytest.raises(ConfigError, match=r"made a str; it must be a siirl\.models\.Policy"):
        build(f"{HERE}:make_nothing")


def test_openvla_has_no_new_weights():
    with pytest.raises(ConfigError, match="model=openvla_oft ships no weights"):
        build("openvla_oft")


def test_a_tiny_vla_refuses_options_that_its_weights_contradict(tmp_path):
    save_policy(build("tiny_vla", width=8), tmp_path)
    policy = build_policy("tiny_vla", path=str(tmp_path), spec=SPEC, seed=0, options={})
    policy.check_options(SPEC, options={"width": 8, "chunk_length": 8}, path=str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"has width=16, but the weights in .* were made with width=8"
    ):
        policy.check_options(SPEC, options={"width": 16}, path=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "stored", "own", "told"),
    [
        (
            "control_policy",
            {},
            {"activation": "relu"},
            "has activation=relu.* with activation=tanh",
        ),
        ("control_policy", {}, {"normalize": True}, "has normalize=true.* with normalize=false"),
        (
            "control_policy",
            {"activation": "relu"},
            {},
            "has activation=tanh.* with activation=relu",
        ),
        ("tiny_vla", {"bins": 2}, {"bins": 4}, "has bins=4.* with bins=2"),
        ("tiny_flow_vla", {"width": 8}, {"width": 16}, "has width=16.* with width=8"),
        ("tiny_flow_vla", {"noise": "learnt"}, {"noise": "sde"}, "has noise=sde.* noise=learnt"),
        ("tiny_flow_vla", {"steps": 2}, {"steps": 3}, "has steps=3.* with steps=2"),
    ],
)
def test_a_run_does_not_continue_with_another_policy(tmp_path, name, stored, own, told):
    """Weights of another activation or normalisation have the same shapes and would load."""
    spec = SPEC if name == "control_policy" else env_spec("gymnasium", id="Pendulum-v1")
    save_policy(built(name, spec, stored), tmp_path)
    built(name, spec, stored).check_resumed(tmp_path, changed=["words"])
    with pytest.raises(CheckpointError, match=rf"trainer\.resume: this job's policy {told}"):
        built(name, spec, own).check_resumed(tmp_path, changed=[])


def built(name, spec, options):
    return build_policy(name, path=None, spec=spec, seed=0, options=options)


@pytest.mark.parametrize("name", ["action_tokenizer", "chunk_length"])
def test_a_policy_that_lacks_a_member_is_refused_with_what_to_set(monkeypatch, name):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    with pytest.raises(ConfigError, match=rf"made a TinyVLA without {name}: set self\.{name}"):
        build(f"{HERE}:make_policy_without", member=name)


@pytest.mark.parametrize("length", [0, True, 1.5, "8"])
def test_a_policy_with_a_chunk_length_that_is_no_count_is_refused(monkeypatch, length):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    with pytest.raises(ConfigError, match=rf"with chunk_length={length!r}: set .* at least 1"):
        build(f"{HERE}:make_policy_with_length", length=length)
