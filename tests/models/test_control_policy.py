"""The networks for control tasks: their output, standardised states, refusals."""

import dataclasses
import json

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envs.base import IMAGES, PROPRIOCEPTION, EnvSpec
from envs.gymnasium_spaces import ActionLayout
from siirl.algos.distributions import Categorical, Gaussian
from siirl.algos.ranks import ALONE
from siirl.errors import CheckpointError, ConfigError
from siirl.models.control_policy import ControlPolicy, make_control_policy
from siirl.models.policy_loader import load_policy, save_policy

WORDS = torch.zeros((2, 24), dtype=torch.long)


def spec(action_space, *, images=None, tasks=("reach",)) -> EnvSpec:
    spaces = {PROPRIOCEPTION: gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)}
    if images is not None:
        spaces[IMAGES] = gymnasium.spaces.Box(0, 255, (1, *images, 3), np.uint8)
    return EnvSpec(
        name="probe",
        tasks=tasks,
        observation_space=gymnasium.spaces.Dict(spaces),
        action_space=action_space,
        max_episode_steps=10,
    )


DISCRETE, CONTINUOUS = gymnasium.spaces.Discrete(4), gymnasium.spaces.Box(-2.0, 2.0, (2,))
UNBOUNDED = gymnasium.spaces.Box(-np.inf, np.inf, (2,))


def policy(space=CONTINUOUS, **options) -> ControlPolicy:
    torch.manual_seed(0)
    return make_control_policy(spec(space), None, **options)


def act(of: ControlPolicy, states_NP: torch.Tensor):
    return of(pixel_values=None, proprioception=states_NP, instruction_ids=WORDS)


def test_discrete_actions_are_categorical_and_nearly_uniform_at_first():
    distribution = act(policy(DISCRETE), torch.randn(2, 3))
    assert isinstance(distribution, Categorical)
    assert distribution.entropy().flatten().tolist() == pytest.approx([np.log(4)] * 2, abs=1e-3)


def test_continuous_actions_are_gaussian_with_one_deviation_for_all_states():
    made = policy()
    distribution = act(made, torch.randn(2, 3))
    assert isinstance(distribution, Gaussian)
    assert distribution.mean.abs().max() < 0.1
    assert made.log_std.tolist() == [0.0, 0.0]


def deciding(space, **changes) -> EnvSpec:
    layout = ActionLayout(space, name="probe")
    return dataclasses.replace(spec(layout.space), decisions=layout.decisions, **changes)


@pytest.mark.parametrize(
    ("space", "counts"),
    [
        (gymnasium.spaces.MultiDiscrete([3, 5, 1], start=[2, 0, 0]), [3, 5, 1]),
        (gymnasium.spaces.MultiBinary(2), [2, 2]),
        (gymnasium.spaces.MultiDiscrete([1, 1]), [1, 1]),
        (gymnasium.spaces.Box(-1, 1, (2,), np.int64), [3, 3]),
    ],
    ids=str,
)
def test_each_of_several_decisions_is_categorical_over_its_own_values(space, counts, tmp_path):
    torch.manual_seed(0)
    made = make_control_policy(deciding(space), None, chunk_length=2)
    distribution = act(made, torch.zeros(200, 3))
    assert isinstance(distribution, Categorical)
    assert distribution.entropy()[0].tolist() == pytest.approx(2 * np.log(counts).tolist())
    drawn = distribution.sample(torch.rand(200, distribution.shape[1]))
    assert (drawn.amin(0).tolist(), drawn.amax(0).tolist()) == (
        [0] * 2 * len(counts),
        2 * [count - 1 for count in counts],
    )
    layout = ActionLayout(space, name="probe")
    first = np.ravel(getattr(space, "start", getattr(space, "low", 0)))
    for tokens in drawn[:20].numpy():
        actions = made.action_tokenizer.decode(tokens)
        native = np.stack([layout.native(action) for action in actions])
        assert all(map(layout.space.contains, actions))
        assert (native - first).ravel().tolist() == tokens.tolist()
        assert made.action_tokenizer.encode(actions).tolist() == tokens.tolist()

    scored = distribution.scores(drawn)
    (scored.log_probs_BT.sum() + scored.entropy_BT.sum()).backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all() for parameter in made.parameters()
    )
    save_policy(made, tmp_path)
    read = make_control_policy(deciding(space), str(tmp_path), chunk_length=2)
    assert torch.equal(act(read, torch.zeros(200, 3)).logits, distribution.logits)


def test_decisions_of_many_values_are_rounded_gaussians():
    space = gymnasium.spaces.MultiDiscrete([3, 257])
    made = make_control_policy(deciding(space), None)
    distribution = act(made, torch.zeros(2, 3))
    assert isinstance(distribution, Gaussian)
    highest = made.action_tokenizer.decode(distribution.values(torch.tensor([0.99, 2.0])).numpy())
    assert ActionLayout(space, name="probe").native(highest[0]).tolist() == [2, 256]


def test_weights_for_other_decisions_are_refused(tmp_path):
    save_policy(
        make_control_policy(deciding(gymnasium.spaces.MultiDiscrete([3, 5])), None), tmp_path
    )
    for other in ([5, 3], [3, 5, 2], [3, 6]):
        with pytest.raises(ConfigError, match="but environment 'probe' in Box"):
            make_control_policy(deciding(gymnasium.spaces.MultiDiscrete(other)), str(tmp_path))


@pytest.mark.parametrize("counts", [[3, 4], [0, 5], "35"], ids=str)
def test_a_folder_whose_decisions_do_not_fit_its_bins_is_refused(counts, tmp_path):
    space = gymnasium.spaces.MultiDiscrete([3, 5])
    save_policy(make_control_policy(deciding(space), None), tmp_path)
    file = tmp_path / "config.json"
    description = json.loads(file.read_text())
    description["config"]["action_tokenizer"]["counts"] = counts
    file.write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="does not describe a policy of siirl"):
        make_control_policy(deciding(space), str(tmp_path))


def test_an_instruction_that_may_change_is_read():
    saying = dataclasses.replace(spec(DISCRETE), instruction_changes=True)
    made = make_control_policy(saying, None)
    words = torch.from_numpy(
        np.stack([made.tokenize_instruction(text) for text in ("go left", "go right")])
    )
    states = torch.zeros(2, 3)
    hidden = made.features(pixel_values=None, proprioception=states, instruction_ids=words)
    assert not torch.allclose(hidden[0], hidden[1], atol=0.01)
    assert not hasattr(policy(DISCRETE), "words")


def test_layers_are_orthogonal():
    weight = policy().states[2].weight
    assert torch.allclose(weight @ weight.T, 2 * torch.eye(64), atol=1e-5)


def test_the_first_deviation_and_the_activation_are_options():
    made = policy(initial_log_std=-2, activation="relu")
    assert made.log_std.tolist() == [-2.0, -2.0]
    assert isinstance(made.states[1], torch.nn.ReLU)


def test_without_orthogonal_the_first_weights_are_those_of_pytorch():
    torch.manual_seed(0)
    made = policy(orthogonal=False, width=8)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)]
    for own, layer in zip([made.states[0], made.states[2], made.head], layers, strict=True):
        assert torch.equal(own.weight, layer.weight) and torch.equal(own.bias, layer.bias)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"activation": "gelu"}, "activation='gelu' must be one of tanh, relu"),
        ({"initial_log_std": -30}, "initial_log_std=-30 must be a number from -20 to 20"),
        ({"initial_log_std": float("nan")}, "initial_log_std=nan must be a number"),
        ({"initial_log_std": True}, "initial_log_std=True must be a number"),
        ({"normalize": "yes"}, "normalize='yes' must be true or false"),
        ({"orthogonal": 0}, "orthogonal=0 must be true or false"),
    ],
    ids=str,
)
def test_an_option_out_of_its_range_is_refused(option, message):
    with pytest.raises(ValueError, match=message):
        policy(**option)


def test_a_folder_without_the_newer_options_has_their_defaults(tmp_path):
    save_policy(policy(), tmp_path)
    file = tmp_path / "config.json"
    description = json.loads(file.read_text())
    for name in ("activation", "initial_log_std", "orthogonal"):
        del description["config"][name]
    file.write_text(json.dumps(description))
    config = make_control_policy(spec(CONTINUOUS), str(tmp_path), activation="relu").config
    assert (config.activation, config.initial_log_std, config.orthogonal) == ("tanh", 0.0, True)


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_statistics_are_those_of_all_states_so_far_however_they_came(sizes, seed):
    made = policy(normalize=True)
    states = torch.from_numpy(np.random.default_rng(seed).normal(3, 2, (sum(sizes), 3)))
    for part in states.split(sizes):
        made.observe(part, ranks=ALONE)
    if len(states) == 0:
        assert made.mean.tolist() == [0.0] * 3
        return
    assert torch.allclose(made.mean, states.mean(0))
    assert torch.allclose(made.variance, states.var(0, unbiased=False))


def test_standardised_states_are_clipped_at_ten_deviations():
    made = policy(normalize=True)
    made.observe(torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]), ranks=ALONE)
    near, far = made._standardised(torch.tensor([[3.0, 1.0, 0.0], [1e6, -1e6, 1.0]]))
    assert near.tolist() == pytest.approx([2.0, 0.0, -1.0])
    assert far.tolist() == pytest.approx([10.0, -10.0, 0.0])


def test_without_normalize_states_stay_as_they_are():
    made = policy()
    made.observe(torch.ones(4, 3), ranks=ALONE)
    assert made._standardised(torch.tensor([[7.0, 7.0, 7.0]])).tolist() == [[7.0] * 3]


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS, UNBOUNDED])
def test_a_folder_gives_the_same_policy_statistics_included(space, tmp_path):
    made = policy(space, normalize=True)
    made.observe(torch.randn(5, 3), ranks=ALONE)
    save_policy(made, tmp_path)
    read = make_control_policy(spec(space), str(tmp_path), normalize=True)
    assert all(
        torch.equal(tensor, read.state_dict()[name]) for name, tensor in made.state_dict().items()
    )


def test_pictures_and_states_are_seen_together():
    made = make_control_policy(spec(DISCRETE, images=(84, 84)), None)
    distribution = made(
        pixel_values=torch.zeros((2, 1, 84, 84, 3), dtype=torch.uint8),
        proprioception=torch.zeros(2, 3),
        instruction_ids=WORDS,
    )
    assert distribution.shape == (2, 1)
    assert made.feature_size == 512 + 64


def test_pictures_too_small_for_the_convolutions_are_refused():
    with pytest.raises(ValueError, match="images of 32 x 32 pixels, but control_policy needs 36"):
        make_control_policy(spec(DISCRETE, images=(32, 32)), None)


def test_several_tasks_need_a_policy_that_reads():
    with pytest.raises(
        ValueError, match="has 2 tasks, but control_policy does not read the instruction"
    ):
        make_control_policy(spec(DISCRETE, tasks=("reach", "push")), None)


def test_weights_of_another_kind_of_actions_are_refused(tmp_path):
    save_policy(policy(DISCRETE), tmp_path)
    with pytest.raises(ConfigError, match="but environment 'probe' in Box"):
        make_control_policy(spec(CONTINUOUS), str(tmp_path))


def test_a_critics_trunk_has_no_head():
    made = policy()
    made.drop_head()
    assert {name.split(".")[0] for name, _ in made.named_parameters()} == {"states"}


def test_another_model_is_told_the_word_that_chooses_this_policy(tmp_path):
    save_policy(policy(), tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"a control_policy: choose actor_rollout_ref\.model\.policy=control_policy\.",
    ):
        load_policy(tmp_path)


def test_proprioception_without_a_number_is_refused():
    empty = gymnasium.spaces.Dict({PROPRIOCEPTION: gymnasium.spaces.Box(-1.0, 1.0, (0,))})
    with pytest.raises(ValueError, match=r"'proprioception' without a number: .*Leave it out"):
        make_control_policy(dataclasses.replace(spec(DISCRETE), observation_space=empty), None)
