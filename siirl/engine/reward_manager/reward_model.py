"""Reward model: a sequence classifier; its single output for a whole conversation is the reward.

It uses its own tokenizer and chat template, which may differ from the policy's. Each rank scores
its own episodes. On several ranks the weights are sharded (FSDP2), and all ranks make the same
number of passes, since each pass gathers weights.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch

from envs.base import is_reward
from envs.text import Message
from siirl.engine.reward_manager.reward_contract import EpisodeOutcomes
from siirl.engine.reward_manager.text_parts import MODEL_COLUMNS, PartScores, column_of
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.sharding import repeated_blocks, shard
from siirl.errors import CheckpointError, ConfigError, MissingAssetError
from siirl.files.hub_place import is_only_path
from siirl.files.paths import find
from siirl.models.hub import find_on_hub
from siirl.models.pretrained import plan_model
from siirl.models.weights import materialise, move_to
from siirl.params import RewardModelArguments
from siirl.params.reward_args import CustomRewardArguments, RewardArguments, reward_parts

KEY = "reward_model.path"


class RewardModel:
    """The part `model` of a text's reward.

    Args:
        classifier: A sequence classifier of transformers; its weights may be planned
            (`siirl.models.weights.materialise`).
        tokenizer: Tokenizer of the classifier.
        device: Device of this rank.
        ranks: The processes that score together; all call `score` the same number of times.
        micro_batch_size: Conversations of one forward pass.
        place: Source of the model, for messages.

    Raises:
        ConfigError: It has more than one output, or its tokenizer has no token to pad with.
    """

    def __init__(
        self,
        classifier: Any,
        tokenizer: Any,
        *,
        device: torch.device,
        ranks: Collectives,
        micro_batch_size: int,
        place: str = KEY,
    ) -> None:
        if classifier.config.num_labels != 1:
            raise ConfigError(
                f"{KEY}={place} has {classifier.config.num_labels} outputs, but a reward is one "
                "number: choose a model with num_labels=1."
            )
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        if pad is None:
            raise ConfigError(
                f"{KEY}={place}: its tokenizer has neither a padding nor an end-of-text token; set "
                "pad_token in tokenizer_config.json."
            )
        self.classifier = classifier.eval()
        self.tokenizer = tokenizer
        self.micro_batch_size = micro_batch_size
        # the classifier takes the last token of a row that is not padding
        self.pad_id = classifier.config.pad_token_id = int(pad)
        self.max_length: int | None = (
            classifier.config.get_text_config().to_dict().get("max_position_embeddings")
        )
        self.device = device
        self.ranks = ranks
        move_to(classifier, device)
        if ranks.group is not None:
            shard(
                self.classifier,
                ranks=ranks,
                device=device,
                compute_dtype=None,
                blocks=repeated_blocks(self.classifier),
            )
        materialise(classifier, device)

    def score(
        self, outcomes: EpisodeOutcomes, rows: Sequence[int], *, most_failures: float
    ) -> PartScores:
        """Score these rows.

        Rows longer than the model's context, and rows whose score is not finite, fail.
        """
        prompts, responses = (column_of(outcomes, name) for name in MODEL_COLUMNS)
        scores = PartScores()
        tokens: dict[int, list[int]] = {}
        for row in rows:
            ids = self.encode(
                [*json.loads(prompts[row]), {"role": "assistant", "content": responses[row]}]
            )
            if self.max_length is not None and len(ids) > self.max_length:
                scores.failed[row] = (
                    f"the conversation has {len(ids)} tokens, but the reward model takes at most "
                    f"{self.max_length}"
                )
            else:
                tokens[row] = ids
        # rows of similar length share a pass, to reduce padding
        by_length = sorted(tokens, key=lambda row: len(tokens[row]))
        for start in range(0, self._most_rows(len(by_length)), self.micro_batch_size):
            some = by_length[start : start + self.micro_batch_size]
            # without rows left: a dummy pass for the other ranks
            values = self.forward([tokens[row] for row in some] or [[self.pad_id]])
            for row, value in zip(some, values, strict=False):
                if is_reward(value):
                    scores.value[row] = value
                else:
                    scores.failed[row] = f"the reward model returned {value}"
        return scores

    def _most_rows(self, own: int) -> int:
        return int(self.ranks.maximum(torch.tensor(float(own))))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a whole conversation, by the chat template.

        Without a template, contents are joined by newlines.
        """
        if self.tokenizer.chat_template is None:
            return list(
                self.tokenizer("\n".join(entry["content"] for entry in messages))["input_ids"]
            )
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def forward(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """One score per conversation."""
        longest = max(len(ids) for ids in conversations)
        input_ids = torch.tensor(
            [[*ids, *[self.pad_id] * (longest - len(ids))] for ids in conversations]
        )
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in conversations])
        logits = self.classifier(
            input_ids=input_ids.to(self.device), attention_mask=mask.to(self.device)
        ).logits
        numbers: list[float] = logits[:, 0].float().tolist()
        return numbers

    def close(self) -> None:
        """Do nothing: there are no processes."""


def make_reward_model(
    reward: RewardArguments,
    custom: CustomRewardArguments,
    reward_model: RewardModelArguments,
    *,
    device: torch.device,
    ranks: Collectives,
) -> RewardModel | None:
    """The reward model of a text job; None if no part of the reward is `model`.

    Every rank calls it.

    Raises:
        ConfigError: No path, or a model that cannot be a reward.
        MissingAssetError: No such folder or hub id.
        CheckpointError: Missing weights, for example a head that was never trained.
    """
    if not any(part.name == "model" for part in reward_parts(reward, custom)):
        return None
    if reward_model.path is None:
        raise ConfigError(
            f"reward.name=model, but {KEY}=null: name a sequence classifier with one output, a "
            "folder or a hub id."
        )
    return load_reward_model(reward_model, device=device, ranks=ranks)


def load_reward_model(
    settings: RewardModelArguments, *, device: torch.device, ranks: Collectives
) -> RewardModel:
    """Load classifier and tokenizer; see `make_reward_model`.

    On several ranks each reads only its part of the weights (`siirl.models.pretrained.plan_model`).
    """
    from transformers import AutoTokenizer

    assert settings.path is not None
    folder = find(settings.path)
    if not folder.is_dir() and is_only_path(settings.path):
        raise MissingAssetError(
            f"{KEY}={settings.path}: there is no such folder. Give a folder with config.json and "
            "weights, or a hub id."
        )
    source = str(folder) if folder.is_dir() else find_on_hub(settings.path, place=KEY)
    options = {"trust_remote_code": settings.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        classifier, missing = _classifier(source, **options)
    except (ImportError, OSError) as error:
        raise MissingAssetError(f"{KEY}={source} cannot be read: {_first_line(error)}") from error
    except (ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"{KEY}={source} cannot be read as a sequence classifier: {_first_line(error)}"
        ) from error
    if missing:
        raise CheckpointError(
            f"{KEY}={source} lacks {len(missing)} weights of a {type(classifier).__name__}, the "
            f"first of them {missing[0]!r}; these weights and the rewards would be random. Choose "
            "a model that was trained as a reward model."
        )
    return RewardModel(
        classifier,
        tokenizer,
        device=device,
        ranks=ranks,
        micro_batch_size=settings.micro_batch_size,
        place=source,
    )


def _classifier(source: str, *, trust_remote_code: bool) -> tuple[Any, list[str]]:
    """The classifier in its stored type, and the names of the weights that the files lack."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification
    options = {"trust_remote_code": trust_remote_code}
    config = AutoConfig.from_pretrained(source, **options)
    if config.dtype is not None:
        found = plan_model(kind, source, config, dtype=config.dtype, **options)
        if found is not None:
            planned_classifier, planned = found
            planned_classifier.planned = planned
            return planned_classifier, []
    classifier, report = kind.from_pretrained(
        source, dtype="auto", output_loading_info=True, **options
    )
    return classifier, sorted(report["missing_keys"])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
