"""The warm start of a language model: its examples, its end, and the same model
from the same seed.
"""

import json
import math
import re

import pytest
import torch

from envs.prompt_rows import PromptRow
from envs.text import message
from siirl.errors import ConfigError
from siirl.imitation import sft
from siirl.imitation.sft import (
    Questions,
    measure_answers,
    rows_of,
    train_sft,
    unlearnt,
    warm_start_on_answers,
)
from siirl.imitation.sft_examples import Example, SftSource, answer_at_once, sft_source
from siirl.imitation.warm_start_flags import text_defaults
from siirl.imitation.warm_starts import describe_tasks
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.tiny_lm import TinyLMShape, new_tiny_lm, tiny_tokenizer
from siirl.params import EnvArguments, SiiRLArguments

SMALL = {"width": 32, "layers": 1, "heads": 1, "feed_forward": 64, "max_length": 32}
PAD = 256


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(tiny_tokenizer())


def small_model():
    return LanguageModel(new_tiny_lm(seed=0, shape=TinyLMShape(**SMALL)))


def questions(tokenizer, *, tasks=("sums-1",), seed=0):
    return Questions(sft_source(EnvArguments(name="math", tasks=tasks)), tokenizer, seed=seed)


def test_rows_are_padded_on_both_sides(tokenizer):
    examples = [Example((1, 2), (3,), (True,)), Example((4,), (5, 6), (False, True))]
    rows = rows_of(examples, pad_id=PAD)
    assert rows["input_ids"].tolist() == [[1, 2, 3, PAD], [PAD, 4, 5, 6]]
    assert rows["attention_mask"].tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert rows["responses"].tolist() == [[3, PAD], [5, 6]]
    assert rows["response_mask"].tolist() == [[1, 0], [0, 1]]


def texts_of(rows, tokenizer):
    return [
        tokenizer.decode(ids[mask.bool()].tolist())
        for ids, mask in zip(rows["input_ids"], rows["attention_mask"], strict=True)
    ]


def test_taught_and_measured_questions_are_of_different_splits(tokenizer):
    taught = set(texts_of(questions(tokenizer).draw(400), tokenizer))
    measured = texts_of(questions(tokenizer).distinct(1000), tokenizer)
    assert len(measured) == len(set(measured)) < 100  # of the 100 ordered pairs of digits
    assert not taught & set(measured)
    assert all(eval(text.replace("=", "==")) for text in (*taught, *measured))


def test_tasks_take_turns(tokenizer):
    lengths = questions(tokenizer, tasks=("sums-1", "sums-3")).draw(4)["attention_mask"].sum(1)
    assert [int(length) > 9 for length in lengths] == [False, True, False, True]


def test_tasks_that_are_named_are_asked_alone(tokenizer):
    drawn = questions(tokenizer, tasks=("sums-1", "sums-3")).draw(4, tasks=("sums-3",))
    assert all(re.fullmatch(r"\d{3}\+\d{3}=\d+.*", text) for text in texts_of(drawn, tokenizer))


def test_greedy_sampled_and_entropy_of_a_model_that_knows_nothing(tokenizer):
    model = small_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()  # every token equally likely
    rows = questions(tokenizer).draw(8)
    measured = measure_answers(model, rows, rollouts=4)
    lengths = rows["response_mask"].sum(1)
    assert measured["mixed"] == pytest.approx(4 * measured["sampled"], rel=1e-2)
    assert measured["sampled"] == pytest.approx(float((264.0**-lengths).mean()), rel=1e-4)
    assert measured["entropy"] == pytest.approx(math.log(264), rel=1e-5)
    assert (measured["greedy"], measured["questions"]) == (0.0, 8)


def test_a_repeated_example_is_learnt_by_heart(tokenizer):
    model, rows = small_model(), questions(tokenizer).draw(2)
    losses = list(train_sft(model, lambda: rows, updates=120, learning_rate=1e-2))
    assert losses[0] > 4.0
    assert losses[-1] < 0.2
    assert measure_answers(model, rows)["greedy"] == 1.0


def test_a_task_that_is_known_is_not_taught_further(tokenizer):
    source = SftSource(
        tasks=("known", "other"),
        draw_row=lambda task, split, seed: PromptRow(
            data_source=task,
            prompt=(message("user", {"known": "1+1=", "other": "sort 31:"}[task]),),
            ground_truth={"known": "2", "other": "13"}[task],
            style="whole",
        ),
        respond=answer_at_once,
    )
    model, asked = small_model(), Questions(source, tokenizer, seed=0)
    assert unlearnt(model, asked, stop_at=0.4) == ("known", "other")
    rows = asked.draw(2, tasks=("known",))
    for _ in train_sft(model, lambda: rows, updates=60, learning_rate=1e-2):
        pass
    assert unlearnt(model, asked, stop_at=0.4) == ("other",)
    assert unlearnt(model, asked, stop_at=0.0) == ()


def test_a_loss_is_the_mean_over_answer_tokens(tokenizer):
    model, rows = small_model(), questions(tokenizer).draw(3)
    logits = model.causal_lm(
        input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]
    ).logits
    start = rows["input_ids"].shape[1] - rows["responses"].shape[1]
    log_p = torch.log_softmax(logits[:, start - 1 : -1], dim=-1).gather(
        2, rows["responses"][..., None]
    )[..., 0]
    expected = -(log_p * rows["response_mask"]).sum() / rows["response_mask"].sum()
    assert next(
        iter(train_sft(model, lambda: rows, updates=1, learning_rate=1e-3))
    ) == pytest.approx(expected.item(), rel=1e-5)


def config_for(**model):
    config = SiiRLArguments()
    config.env.name, config.env.tasks = "math", ("sums-1",)
    for name, value in model.items():
        setattr(config.actor_rollout_ref.model, name, value)
    return config


def start(folder, *, updates=20, stop_at=2.0, tasks=("sums-1",), **model):
    config = config_for(**{"options": SMALL, **model})
    config.env.tasks = tasks
    return warm_start_on_answers(
        folder,
        initial=config.actor_rollout_ref.model,
        env=config.env,
        trainer=config.trainer,
        rollouts=16,
        updates=updates,
        batch_rows=32,
        learning_rate=1e-2,
        stop_at=stop_at,
        command="test",
    )


def test_the_same_seed_makes_the_same_model_and_notes(tmp_path):
    notes = [start(tmp_path / name) for name in ("one", "other")]
    assert notes[0] == notes[1] == json.loads((tmp_path / "one" / "warm_start.json").read_text())
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "other" / "model.safetensors"
    ).read_bytes()
    assert notes[0]["updates"] == 20
    assert 0 < notes[0]["held_out"]["questions"] < 100


def test_training_ends_at_the_requested_share_of_right_answers(tmp_path):
    assert start(tmp_path, updates=30, stop_at=0.0)["updates"] == sft.LOOK_EVERY


def test_of_several_tasks_each_is_measured(tmp_path):
    notes = start(tmp_path, updates=1, tasks=("sums-2", "sorting-2"))
    assert {task: found["questions"] > 30 for task, found in notes["held_out_by_task"].items()} == {
        "sums-2": True,
        "sorting-2": False,  # of the 45 sets of two digits seven are held out
    }
    assert "held_out_by_task" not in start(tmp_path, updates=1)


def test_each_task_gets_as_many_updates_as_one_alone():
    assert text_defaults(("sums-2",))["updates"] == 700
    assert text_defaults(("sums-2", "sorting-5", "bases-3"))["updates"] == 2100


def test_a_task_without_a_right_sample_is_named():
    measured = {
        "sums-2": {"sampled": 0.25, "mixed": 0.8},
        "products-2": {"sampled": 0.004, "mixed": 0.06},
    }
    assert describe_tasks(measured) == [
        "Sampled, by task: sums-2 25.0%, products-2 0.4%.",
        "Mixed groups, by task: sums-2 80.0%, products-2 6.0%.",
        "Hardly ever right: products-2. Reinforcement learning gets almost no signal there: give "
        "more --updates, or choose an easier size.",
    ]
    assert describe_tasks({}) == []


def test_an_existing_model_is_trained_further(tmp_path):
    first = start(tmp_path / "first")
    second = start(tmp_path / "second", path=str(tmp_path / "first"), options={})
    assert second["loss"] < first["loss"]
    assert second["taught_on_from"] == first  # so that both are reproducible
    assert load_language_model(tmp_path / "second").max_length == SMALL["max_length"]


def test_options_that_no_shape_has_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="fits no TinyLMShape"):
        start(tmp_path, options={"bins": 16})


def test_an_unknown_task_is_refused(tmp_path):
    config = config_for(options=SMALL)
    config.env.tasks = ("sum-2",)
    with pytest.raises(ConfigError, match=r"env=math: Unknown maths task 'sum-2'"):
        warm_start_on_answers(
            tmp_path,
            initial=config.actor_rollout_ref.model,
            env=config.env,
            trainer=config.trainer,
            rollouts=16,
            updates=1,
            batch_rows=1,
            learning_rate=1e-3,
            stop_at=0.4,
            command="test",
        )
