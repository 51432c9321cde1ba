"""Parts of a custom training script under one import, for a loop without a graph.

    from siirl.user_interface import own_loop as rl

Every name is defined elsewhere and can also be imported from there. siirl does not import this
module, because it imports torch and the engines. `docs/examples/own_text_training.py` trains with
it.
"""

from typing import Any

from siirl.algos.advantages import grpo_advantage, rloo_advantage
from siirl.algos.log_probs import TokenScores
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.data_coordinator.task_stream import TaskLoader, training_seed
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.packing import prefix_groups_of
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse, TextEngine
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.rollout import requests_for_prompts
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutResult, RolloutWorkflow, Trajectory
from siirl.engine.training.collectives import Collectives, GroupOfProcesses, OneProcess, leave
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_sync import WeightSync
from siirl.env_server.pool import EnvPool
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.params import ActorArguments, OptimizerArguments
from siirl.user_interface.single_turn import single_turn

__all__ = [
    "Actor",
    "ActorArguments",
    "ChatTokenizer",
    "Collectives",
    "EnvPool",
    "EpisodeRequest",
    "GenerationRequest",
    "GenerationResponse",
    "GroupOfProcesses",
    "HFEngine",
    "InferenceEngine",
    "OneProcess",
    "OptimizerArguments",
    "RolloutResult",
    "RolloutWorkflow",
    "Sample",
    "Samples2Dict",
    "TaskLoader",
    "TextEngine",
    "TextWorkflow",
    "TrainEngine",
    "Trajectory",
    "WeightSync",
    "grpo_advantage",
    "leave",
    "load_chat_tokenizer",
    "load_language_model",
    "requests_for_prompts",
    "rloo_advantage",
    "single_turn",
    "text_train_engine",
    "training_seed",
]


def text_train_engine(
    model: LanguageModel, *, optim: OptimizerArguments | None, **options: Any
) -> TrainEngine[TokenScores]:
    """Build an initialized engine for a language model; shared prompts are computed once.

    Args:
        model: The model to train.
        optim: Optimizer and schedule; None for a reference that only scores.
        options: Further arguments of `TrainEngine`.
    """
    return TrainEngine(
        module=model,
        scorer=text_scorer,
        prefix_groups=prefix_groups_of(model),
        optim=optim,
        **options,
    ).initialize()
