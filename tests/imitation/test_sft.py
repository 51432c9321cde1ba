"""The warm start of a language model: its examples, its end, and the same model
from the same seed.
"""

import json
import math

import pytest
import torch

from siirl.errors import ConfigError
from siirl.imitation import sft
from siirl.imitation.sft import (
    Questions,
    measure_answers,
    rows_of,
    train_sft,
    warm_start_on_answers,
)
from siirl.imitation.sft_examples import Example, sft_source
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


def test_greedy_sampled_and_entropy_of_a_model_that_knows_nothing(tokenizer):
    model = small_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()  # every token equally likely
    rows = questions(tokenizer).draw(8)
    measured = measure_answers(model, rows)
    lengths = rows["response_mask"].sum(1)
    assert measured["sampled"] == pytest.approx(float((264.0**-lengths).mean()), rel=1e-4)
    assert measured["entropy"] == pytest.approx(math.log(264), rel=1e-5)
    assert (measured["greedy"], measured["questions"]) == (0.0, 8)


def test_a_repeated_example_is_learnt_by_heart(tokenizer):
    model, rows = small_model(), questions(tokenizer).draw(2)
    losses = list(train_sft(model, lambda: rows, updates=120, learning_rate=1e-2))
    assert losses[0] > 4.0
    assert losses[-1] < 0.2
    assert measure_answers(model, rows)["greedy"] == 1.0


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


def start(folder, *, updates=20, stop_at=2.0, **model):
    return warm_start_on_answers(
        config_for(**{"options": SMALL, **model}),
        folder,
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
            config,
            tmp_path,
            updates=1,
            batch_rows=1,
            learning_rate=1e-3,
            stop_at=0.4,
            command="test",
        )
