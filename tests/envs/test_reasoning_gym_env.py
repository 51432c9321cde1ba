"""Questions and scores of reasoning-gym behind the contract.

A small package of the same interface stands in for reasoning-gym, whose dependency pycosat is
compiled at installation; the last tests run where the real one is installed.
"""

import asyncio
import importlib.util
import sys

import pytest

from envs.base import EpisodeFailed
from envs.checker import check_env
from envs.reasoning_gym_env import final_answer
from envs.registry import make_env
from envs.text import MESSAGES, REWARD_PARTS

FAKE_FACTORY = '''
from dataclasses import dataclass


@dataclass
class Config:
    largest: int = 1000
    seed: int = 0
    size: int = 1

    def validate(self):
        assert self.largest > 0, "largest must be positive"


class Doubles:
    """Asks for twice a number; the answer itself selects what the verifier does."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, index):
        number = (self.config.seed + index) % self.config.largest
        return {"question": f"2*{number}=", "answer": str(2 * number), "metadata": {"pair": (number, 2)}}

    def score_answer(self, answer, entry):
        odd = {"nan": float("nan"), "two": 2.0, "text": "1", "half": 0.5}
        if answer == "raise":
            raise TypeError("cannot read it")
        while answer == "hang":
            pass
        return odd.get(answer, float(answer == entry["answer"]))


DATASETS = {"doubles": (Doubles, Config), "doublings": (Doubles, Config)}
'''
FAKE_PACKAGE = """
from reasoning_gym.factory import DATASETS


def create_dataset(name, **arguments):
    generator, config = DATASETS[name]
    made = config(**arguments)
    made.validate()
    return generator(made)
"""
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    folder = tmp_path / "reasoning_gym"
    folder.mkdir()
    (folder / "__init__.py").write_text(FAKE_PACKAGE)
    (folder / "factory.py").write_text(FAKE_FACTORY)
    real = {name: sys.modules.pop(name) for name in _imported()}
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in _imported():
        del sys.modules[name]
    sys.modules.update(real)


def _imported():
    return [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]


def play(*answers, options=None, **arguments):
    """One episode an answer; returns (prompt and info of reset, results of step) of each."""

    async def run():
        env = make_env("reasoning_gym", **({"dataset": "doubles"} | arguments))
        try:
            seen, results = [], []
            for answer in answers:
                observation, info = await env.reset(seed=0, options=options)
                seen.append((observation[MESSAGES][0]["content"], info))
                try:
                    text = answer.format(truth=info["ground_truth"])
                    results.append(await env.step(text))
                except EpisodeFailed as failed:
                    results.append(failed)
            return seen, results
        finally:
            await env.close()

    return asyncio.run(run())


def test_the_contract_is_kept(fake_package):
    check_env(make_env("reasoning_gym", dataset="doubles"), seed=3)


def test_the_reward_is_the_score_and_success_is_a_score_of_one(fake_package):
    _, results = play("{truth}", "half", "no number")
    assert [(reward, info["success"], info[REWARD_PARTS]) for _, reward, _, _, info in results] == [
        (1.0, True, {"score": 1.0}),
        (0.5, False, {"score": 0.5}),
        (0.0, False, {"score": 0.0}),
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("raise", "TypeError: cannot read it"),
        ("nan", "returned nan"),
        ("two", "returned 2.0"),
        ("text", "returned '1'"),
    ],
)
def test_a_verifier_without_a_score_in_0_to_1_fails_the_episode_alone(fake_package, answer, reason):
    _, (failed, after) = play(answer, "{truth}")
    assert isinstance(failed, EpisodeFailed)
    assert reason in str(failed)
    assert after[1] == 1.0


def test_a_verifier_that_hangs_is_ended_by_its_processor_time(fake_package):
    _, (failed, after) = play("hang", "{truth}", verifier_cpu_s=1)
    assert "processor time" in str(failed)
    assert after[1] == 1.0


def test_no_question_of_training_is_held_out(fake_package):
    async def questions(split):
        env = make_env("reasoning_gym", dataset="doubles", wording="bare")
        seen = [await env.reset(seed=seed, options={"split": split}) for seed in range(40)]
        return {observation[MESSAGES][0]["content"] for observation, _ in seen}

    training, held_out = (asyncio.run(questions(split)) for split in ("train", "heldout"))
    assert len(training) > 30
    assert len(held_out) > 30
    assert not training & held_out


def test_a_generator_without_another_question_is_refused_for_the_other_split(fake_package):
    with pytest.raises(ValueError, match="too few different questions"):
        for split in ("train", "heldout"):
            play("0", options={"split": split}, largest=1)


def test_the_last_marked_answer_counts_or_the_whole_text():
    assert final_answer("<answer>1</answer> no: <answer> 2\n</answer>") == "2"
    assert final_answer(" 3 ") == "3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "double"}, "Did you mean 'doubles'"),
        ({"dataset": "list_functions"}, "a different question in each process"),
        ({"dataset": "composite"}, "each need a configuration of their own"),
        ({"largst": 3}, "Did you mean 'largest'"),
        ({"largest": 0}, "largest must be positive"),
        ({"heldout_share": 0}, "above 0 and below 1"),
        ({"wording": "loud"}, "Unknown wording 'loud'. Known: words, bare"),
    ],
)
def test_impossible_settings_are_refused_with_the_remedy(fake_package, arguments, message):
    with pytest.raises(ValueError, match=message):
        play("0", **arguments)


def test_rows_of_files_are_refused(fake_package):
    with pytest.raises(ValueError, match=r"leave data\.train_files"):
        play("0", options={"row": {"prompt": "1+1="}})


@needs_package
@pytest.mark.parametrize("dataset", ["chain_sum", "letter_counting", "time_intervals"])
def test_the_real_generators_score_their_own_answers_with_one(dataset):
    _, (result,) = play("{truth}", dataset=dataset)
    assert result[1] == 1.0


@needs_package
def test_a_real_verifier_that_raises_fails_the_episode():
    _, (failed,) = play("3", dataset="boxnet")
    assert "TypeError" in str(failed)
