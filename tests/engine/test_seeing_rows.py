"""Questions with pictures: acting, scoring and training agree, for a random Qwen2.5-VL."""

import copy

import numpy as np
import pytest
import torch
from seen_dots import SHAPE, answered, picture, prompt_of, row_of, seeing_model

from siirl.data_coordinator.protocol.batch import concat, select_rows
from siirl.data_coordinator.sample import Dict2Samples, Sample, Samples2Dict
from siirl.engine.actor.packing import pack_rows, prompt_groups
from siirl.engine.actor.text_scorer import text_scorer
from siirl.models.tiny_vlm import tiny_seeing_tokenizer

WORDS = "<image>How many?"


@pytest.fixture(scope="module")
def model():
    return seeing_model()


@pytest.fixture(scope="module")
def prompts():
    """Groups of two: one picture, another in the same words, two pictures, none."""
    four = [
        prompt_of(WORDS, picture(1)),
        prompt_of(WORDS, picture(2)),
        prompt_of("<image> or <image>?", picture(3), picture(4, height=32, width=32)),
        prompt_of("How many?"),
    ]
    return [prompt for prompt in four for _ in range(2)]


@pytest.fixture(scope="module")
def batch(model, prompts):
    answers = answered(model, prompts)
    rows = [
        row_of(n, prompt, answer)
        for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    return Samples2Dict([Sample(row) for row in rows])


def whole_log_probs(model, row):
    """Log-probs of a row's response by transformers' own forward pass over the whole row."""
    ids = torch.as_tensor(row["input_ids"])[None]
    vision = model.vision_inputs.vision
    count = len(row["picture_patches"]) // vision.merge**2
    seen = {}
    if count:
        pictures = row["pictures"]
        seen["pixel_values"] = vision.normalised(torch.from_numpy(pictures.patches_KV))
        grids = torch.from_numpy(pictures.grids_N2)
        seen["image_grid_thw"] = torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids], 1)
        seen["mm_token_type_ids"] = (ids == vision.token).int()
    with torch.no_grad():
        logits = model.causal_lm(input_ids=ids, use_cache=False, **seen).logits[0]
    start = len(row["prompts"])
    chosen = torch.log_softmax(logits[start - 1 : -1], -1)
    return chosen.gather(1, ids[0, start:, None])[:, 0]


def test_log_probs_that_acted_are_those_that_training_recomputes(model, batch):
    with torch.no_grad():
        scores = text_scorer(model, batch, 1.0)
    gaps = (scores.log_probs_BT - batch["rollout_log_probs"]).abs()[batch["response_mask"].bool()]
    assert len(gaps) > 100
    assert gaps.mean() < 1e-4


def test_log_probs_are_those_of_transformers_own_forward_pass(model, prompts, batch):
    with torch.no_grad():
        scores = text_scorer(model, batch, 1.0).log_probs_BT
    for number, (prompt, sample) in enumerate(zip(prompts, Dict2Samples(batch), strict=True)):
        row = {name: sample[name] for name in ("input_ids", "prompts", "responses")}
        if model.vision_inputs.vision.token in row["responses"]:
            continue  # transformers takes it for a picture
        row |= {"pictures": prompt[1], "picture_patches": prompt[1].patches_KV}
        expected = whole_log_probs(model, row)
        torch.testing.assert_close(scores[number, : len(expected)], expected, rtol=0, atol=1e-4)


def test_a_greedy_answer_is_that_of_transformers_generate(model):
    ids, pictures = prompt_of("<image> or <image>?", picture(3), picture(4, height=32, width=32))
    [answer] = answered(model, [(ids, pictures)], tokens=8, greedy=True)
    grids = torch.from_numpy(pictures.grids_N2)
    ids_1S = torch.tensor([ids])
    generated = model.causal_lm.generate(
        input_ids=ids_1S,
        attention_mask=torch.ones_like(ids_1S),
        pixel_values=model.vision_inputs.vision.normalised(torch.from_numpy(pictures.patches_KV)),
        image_grid_thw=torch.cat([torch.ones(2, 1, dtype=torch.long), grids], 1),
        mm_token_type_ids=(ids_1S == model.vision_inputs.vision.token).int(),
        max_new_tokens=8,
        do_sample=False,
    )
    assert generated[0, len(ids) :].tolist() == answer.tokens.tolist()


def test_a_picture_token_that_the_policy_generates_is_text(model):
    """It does not count as a picture, neither when generation resumes nor in training."""
    ids, pictures = prompt_of(WORDS, picture(1))
    begun = (model.vision_inputs.vision.token, 72, model.vision_inputs.vision.token)
    [rest] = answered(model, [(ids, pictures)], tokens=6, begun=begun)
    row = row_of(0, (ids, pictures), rest)
    row["responses"] = np.array([*begun, *rest.tokens])
    row["input_ids"] = np.concatenate([row["prompts"], row["responses"]])
    row["attention_mask"] = np.ones_like(row["input_ids"])
    row["response_mask"] = np.array([0] * 3 + [1] * len(rest.tokens))
    row["position_ids"] = pictures.positions(row["input_ids"])
    names = ("rollout_log_probs", "env_rewards")
    row |= {name: np.concatenate([np.zeros(3, np.float32), row[name]]) for name in names}
    batch = Samples2Dict([Sample(row)])
    with torch.no_grad():
        scored = text_scorer(model, batch, 1.0).log_probs_BT[0, 3:].numpy()
    assert np.abs(scored - rest.log_probs).mean() < 1e-4


def test_rotary_positions_are_those_of_transformers(model, prompts):
    for ids, pictures in prompts[::2]:
        ids_1S = torch.tensor([ids])
        grids = torch.from_numpy(pictures.grids_N2)
        grids_N3 = torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids], 1)
        expected, shift = model.causal_lm.base_model.get_rope_index(
            ids_1S, (ids_1S == model.vision_inputs.vision.token).int(), image_grid_thw=grids_N3
        )
        assert pictures.positions(ids).T.tolist() == expected[:, 0].tolist()
        assert pictures.shifted == -int(shift)


def test_patches_are_those_of_the_models_own_processor():
    reader = tiny_seeing_tokenizer(SHAPE).reader
    source = picture(7, height=91, width=133)
    theirs = reader.processor(images=[source.open()], return_tensors="pt")
    pictures = reader.read((source,))
    ours = reader.vision.normalised(torch.from_numpy(pictures.patches_KV))
    torch.testing.assert_close(ours, theirs["pixel_values"], rtol=0, atol=1e-5)
    assert pictures.grids_N2.tolist() == theirs["image_grid_thw"][:, 1:].tolist()


def test_another_picture_is_another_answer(model):
    one, other = (prompt_of(WORDS, picture(seed)) for seed in (1, 2))
    first, second = answered(model, [one, other], tokens=1, greedy=True)
    assert first.log_probs[0] != second.log_probs[0]


def test_the_rollouts_of_a_group_share_the_encoded_picture_and_others_do_not(model, batch):
    packed = pack_rows(batch, width=1 << 20, share_prompts=True)
    assert model.shares_prompts is False  # only a loaded model is tested for it
    groups = [group.rows for group in prompt_groups(batch, 1 << 20, width=1 << 20)]
    assert sorted(groups) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    seeing = copy.copy(model)
    seeing.shares_prompts = True
    with torch.no_grad():
        apart = text_scorer(model, batch, 1.0).log_probs_BT
        together = text_scorer(seeing, batch, 1.0).log_probs_BT
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-4)
    marks = (packed.input_ids_LS == model.vision_inputs.vision.token).sum()
    assert (
        marks <= 15 + 15 + 15 + 4 + (batch["responses"] == model.vision_inputs.vision.token).sum()
    )


def gradient(model, parts):
    model.zero_grad()
    for rows in parts:
        scores = text_scorer(model, rows, 1.0)
        (scores.log_probs_BT * rows["env_rewards"].sum(1, keepdim=True)).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def test_the_gradient_does_not_depend_on_micro_batches(model, batch):
    whole = gradient(model, [batch])
    rows = [select_rows(batch, [number]) for number in range(len(batch))]
    parts = gradient(model, rows)
    for name, one in whole.items():
        torch.testing.assert_close(parts[name], one, rtol=1e-3, atol=1e-4 * float(one.abs().max()))
    assert float(whole["model.visual.blocks.0.attn.qkv.weight"].abs().max()) > 0


def test_rows_that_travel_keep_their_pictures(model, batch):
    sent = [Samples2Dict([sample]) for sample in reversed(Dict2Samples(batch))]
    back = select_rows(concat(sent), list(range(len(batch)))[::-1])
    with torch.no_grad():
        one, other = (text_scorer(model, rows, 1.0).log_probs_BT for rows in (batch, back))
    torch.testing.assert_close(other[:, : one.shape[1]], one, rtol=0, atol=1e-5)


def test_the_encoder_runs_for_rows_without_pictures(model, batch):
    """On several ranks its weights are gathered by all ranks together."""
    text = gradient(model, [select_rows(batch, [6, 7])])
    assert float(text["model.visual.merger.mlp.2.bias"].abs().max()) == 0
