"""A tiny sequence classifier as reward model: its scores in any batch, and its refusals."""

import json

import numpy as np
import pytest
import torch
from ranks_at_work import run_on_ranks
from safetensors.torch import load_file

from siirl.engine.reward_manager import EpisodeOutcomes, reward_model
from siirl.engine.reward_manager.reward_model import load_reward_model, make_reward_model
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.sharding import shard
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.paths import find
from siirl.models.stored_tensors import local_part
from siirl.params import RewardArguments, RewardModelArguments, SiiRLArguments
from tests.engine.text_managers import text_manager

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CPU, ONE = torch.device("cpu"), OneProcess()
QUESTION = [{"role": "user", "content": "12+34="}]
RESPONSES = ("46", "a much longer answer than the others", "47", "")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Makes folders of tiny classifiers, with the shipped tokenizer."""
    from transformers import (
        AutoTokenizer,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen2ForSequenceClassification,
    )

    tokenizer = AutoTokenizer.from_pretrained(str(find("assets/tiny_lm")))

    def save(*, labels: int = 1, length: int = 128, broken: bool = False, head: bool = True) -> str:
        torch.manual_seed(0)
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
        config = Qwen2Config(
            vocab_size=len(tokenizer), max_position_embeddings=length, num_labels=labels, **sizes
        )
        model = (Qwen2ForSequenceClassification if head else Qwen2ForCausalLM)(config)
        if broken:
            model.score.weight.data.fill_(float("nan"))
        folder = tmp_path_factory.mktemp("reward_model")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="module")
def folder(saved) -> str:
    return saved()


def config_of(path, *, micro_batch_size=16) -> SiiRLArguments:
    return SiiRLArguments(
        reward=RewardArguments(name="model"),
        reward_model=RewardModelArguments(path=path, micro_batch_size=micro_batch_size),
    )


def outcomes(*responses: str) -> EpisodeOutcomes:
    count = len(responses)
    return EpisodeOutcomes(
        uid_B=[f"u{i}" for i in range(count)],
        task_name_B=["sums"] * count,
        index_B=np.arange(count),
        complete_B=np.zeros(count, bool),
        env_return_B=np.zeros(count, np.float32),
        video_embedding_BD=None,
        oracle_distance_B=None,
        texts_B={
            "prompt_messages": [json.dumps(QUESTION)] * count,
            "response_text": list(responses),
        },
        total=count,
    )


def scores_of(path, *responses, ranks=ONE, **options):
    config = config_of(path, **options)
    return text_manager(
        config,
        reward_model=make_reward_model(
            config.reward,
            config.custom_reward_function,
            config.reward_model,
            device=CPU,
            ranks=ranks,
        ),
    ).score(outcomes(*responses))


def test_the_reward_is_the_models_number_for_the_whole_conversation(folder):
    model = load_reward_model(RewardModelArguments(path=folder), device=CPU, ranks=ONE)
    text = model.tokenizer.apply_chat_template(
        [*QUESTION, {"role": "assistant", "content": "46"}], tokenize=False
    )
    ids = torch.tensor([model.tokenizer(text, add_special_tokens=False)["input_ids"]])
    expected = model.classifier(input_ids=ids).logits[0, 0].item()
    assert scores_of(folder, "46").reward_B.tolist() == pytest.approx([expected], abs=1e-6)


def test_the_reward_of_a_conversation_does_not_depend_on_its_batch(folder):
    together, alone = (
        scores_of(folder, *RESPONSES).reward_B,
        scores_of(folder, *RESPONSES, micro_batch_size=1).reward_B,
    )
    assert together.tolist() == pytest.approx(alone.tolist(), abs=1e-6)
    assert len(set(together.tolist())) == len(RESPONSES)


def test_a_conversation_longer_than_the_model_fails_alone(saved):
    scores = scores_of(saved(length=64), "46", "x" * 100)
    assert list(scores.failed) == [1]
    assert "tokens, but the reward model takes at most 64" in scores.failed[1]


def test_a_number_that_is_not_finite_is_not_a_reward(saved):
    assert scores_of(saved(broken=True), "46").failed == {0: "model: the reward model returned nan"}


def test_a_classifier_with_two_outputs_is_refused(saved):
    with pytest.raises(ConfigError, match="has 2 outputs, but a reward is one number"):
        scores_of(saved(labels=2), "46")


def test_a_language_model_whose_head_would_be_random_is_refused(saved):
    with pytest.raises(
        CheckpointError,
        match=r"lacks 1 weights of a Qwen2ForSequenceClassification, the first of them 'score.weight'",
    ):
        scores_of(saved(head=False), "46")


@pytest.mark.parametrize("path", ["/no/such/folder", "assets/none", "models/mine/last"])
def test_a_missing_folder_is_refused_and_not_sought_on_the_hub(path):
    with pytest.raises(
        MissingAssetError, match=rf"reward_model.path={path}: there is no such folder"
    ):
        scores_of(path, "46")


def test_reward_model_without_a_path_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"reward.name=model, but reward_model.path=null: name a sequence classifier",
    ):
        scores_of(None, "46")


def test_no_model_is_loaded_if_no_part_needs_one():
    assert (
        make_reward_model(
            SiiRLArguments().reward,
            SiiRLArguments().custom_reward_function,
            SiiRLArguments().reward_model,
            device=CPU,
            ranks=ONE,
        )
        is None
    )


def of_rank(ranks, path, responses):
    """Scores of a rank's own responses, whose number differs between ranks."""
    return scores_of(
        path, *responses[ranks.rank], ranks=ranks, micro_batch_size=1
    ).reward_B.tolist()


def held_before_and_after_it_is_sharded(ranks, path):
    """Entries of the classifier that this rank holds when it is sharded, and afterwards."""
    before = []

    def watched(module, **options):
        before.append(entries_of(module))
        shard(module, **options)

    reward_model.shard = watched  # of a separate process, which ends with the test
    model = load_reward_model(config_of(path).reward_model, device=CPU, ranks=ranks)
    return before, entries_of(model.classifier)


def entries_of(module):
    return sum(local_part(weight).numel() for weight in module.parameters() if not weight.is_meta)


def test_each_of_two_ranks_reads_only_its_part_of_the_weights(folder):
    total = sum(weight.numel() for weight in load_file(f"{folder}/model.safetensors").values())
    one, other = run_on_ranks(held_before_and_after_it_is_sharded, folder)
    assert one[0] == other[0] == [0]
    assert one[1] + other[1] == total


@pytest.mark.slow  # two processes that import transformers
def test_two_ranks_get_the_rewards_of_one(folder):
    alone = scores_of(folder, *RESPONSES).reward_B.tolist()
    one, other = run_on_ranks(of_rank, folder, (RESPONSES[:3], RESPONSES[3:]))
    assert one + other == pytest.approx(alone, abs=1e-6)
