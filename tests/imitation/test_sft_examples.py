"""Examples for supervised fine-tuning: correct answers in the tokens of a rollout."""

import asyncio
import json

import pytest

from envs.prompt_rows import PromptRow
from envs.registry import make_env
from envs.text import message
from siirl.errors import ConfigError
from siirl.imitation.sft_examples import (
    answer_at_once,
    ask_calculator,
    make_example,
    sft_source,
    write_answer,
)
from siirl.models.chat import ChatTokenizer
from siirl.models.tiny_lm import tiny_tokenizer
from siirl.params import EnvArguments

END, ASSISTANT, TOOL, CALL, CALL_END = 257, 260, 261, 262, 263
TOOLS = {"wording": "bare", "announce": False}
CALCULATOR_CALL = b'\n{"name": "calculator", "arguments": {"expression": "12+34"}}\n'


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(tiny_tokenizer())


def row(style="whole", truth="46", question="12+34=", **extra_info):
    return PromptRow(
        data_source="test",
        prompt=(message("user", question),),
        ground_truth=truth,
        style=style,
        extra_info=extra_info,
    )


@pytest.mark.parametrize(("style", "answer"), [("whole", "46"), ("rule", "#### 46")])
def test_an_answer_is_written_as_it_is_checked(style, answer):
    assert write_answer(row(style)) == answer


def test_the_answer_to_a_countdown_is_its_expression():
    assert write_answer(row("countdown", "{}", solution="(3+5)*9")) == "(3+5)*9"


def test_the_answer_to_a_programming_problem_is_its_program():
    assert write_answer(row("code", "{}", solution="solve=lambda v:v+1")) == "solve=lambda v:v+1"


@pytest.mark.parametrize("style", ["countdown", "code"])
def test_a_check_that_names_no_answer_cannot_be_learnt_from(style):
    with pytest.raises(
        ConfigError, match=f"checked by the style '{style}', which contains no answer"
    ):
        write_answer(row(style, "{}"))


def test_an_answer_is_the_models_own_with_its_end(tokenizer):
    example = make_example(row(), answer_at_once, tokenizer)
    assert (example.prompt, example.completion, example.loss_mask) == (
        tuple(b"12+34="),
        (*b"46", END),
        (True,) * 3,
    )


@pytest.mark.parametrize(
    "question", ["12+34=", "What is 12+34?", "I have 2 minutes: what is 12+34?"]
)
def test_with_tools_the_calculator_is_called_and_its_result_is_not_the_models_own(
    tokenizer, question
):
    example = make_example(row(question=question), ask_calculator, tokenizer)
    call, result, answer = (
        (CALL, *CALCULATOR_CALL, CALL_END, END),
        (TOOL, *b"46", ASSISTANT),
        (*b"46", END),
    )
    assert example.completion == (*call, *result, *answer)
    assert example.loss_mask == (True,) * len(call) + (False,) * len(result) + (True,) * len(answer)


def test_a_question_that_one_call_does_not_answer_is_refused():
    with pytest.raises(
        ConfigError, match=r"does not answer '.3\*4\+5.%7=' of the task 'test': choose sums-n"
    ):
        ask_calculator(row(question="(3*4+5)%7=", truth="3"))


@pytest.mark.parametrize(
    ("env", "kwargs", "tasks"),
    [
        ("math", {}, ("sums-2", "modular-1")),
        ("math", {"wording": "words"}, ("word-sums-2",)),
        ("tools", TOOLS, ("sums-4",)),
    ],
)
def test_the_environment_rewards_what_is_taught(env, kwargs, tasks):
    settings = EnvArguments(name=env, tasks=tasks, kwargs=kwargs)
    source = sft_source(settings)

    async def success(task, seed):
        environment = make_env(env, **settings.constructor_kwargs())
        observation, _ = await environment.reset(seed=seed, options={"task": task})
        question = source.draw_row(task, "train", seed)
        assert list(question.prompt) == observation["messages"]
        said = source.respond(question)
        while said:
            observation, _, _, _, info = await environment.step(said[0]["content"])
            assert observation["messages"] == said[1:2]
            said = said[2:]
        await environment.close()
        return info["success"]

    assert all(asyncio.run(success(task, seed)) for task in tasks for seed in range(2))


@pytest.mark.parametrize("wording", ["bare", "words"])
def test_taught_programs_solve_their_problems(wording):
    source = sft_source(
        EnvArguments(name="sandbox", tasks=("numbers-1",), kwargs={"wording": wording})
    )
    problem = source.draw_row("numbers-1", "train", 0)
    names: dict = {}
    exec(write_answer(problem).removeprefix("```python\n").removesuffix("```"), names)
    tests = json.loads(problem.ground_truth)
    assert [names["solve"](*given) for given in tests["inputs"]] == tests["outputs"]


@pytest.mark.parametrize(
    ("env", "kwargs", "told"),
    [
        (
            "metaworld",
            {},
            "has no target responses; a warm start on answers supports math, tools, sandbox",
        ),
        ("tools", {}, r"set env\.kwargs\.announce=false"),
        ("sandbox", {"files": ["x.parquet"]}, "contain no correct programs"),
        ("math", {"wording": "bear"}, "Unknown wording 'bear'"),
    ],
)
def test_a_job_without_demonstrations_is_refused(env, kwargs, told):
    with pytest.raises(ConfigError, match=told):
        sft_source(EnvArguments(name=env, kwargs=kwargs))
