"""vLLM sleeps between rollouts on a GPU, until something needs it."""

from types import SimpleNamespace

import pytest
import torch

from siirl.engine.rollout.text_engine_base import TextEngineBase
from siirl.engine.rollout.vllm.vllm_engine import VLLMBase
from siirl.engine.rollout.vllm.vllm_settings import engine_settings


class RecordedVLLM(VLLMBase):
    """The engine without a vLLM behind it; records sleep and wake-up."""

    def __init__(self, *, sleeps: bool) -> None:
        TextEngineBase.__init__(self, lockstep=False)
        self.sleeps, self.asleep = sleeps, False
        self.calls: list[str] = []
        self.vllm = SimpleNamespace(
            sleep=lambda level: self.calls.append("sleep"),
            wake_up=lambda: self.calls.append("wake"),
        )

    def _wait(self, work): ...

    def _start(self, settings): ...

    def _transfer(self, weights): ...

    def _complete(self, ids, sampling): ...


def test_vllm_sleeps_after_a_rollout_and_wakes_for_the_next():
    engine = RecordedVLLM(sleeps=True)
    for _ in range(2):
        engine.expect(episodes=1, at_once=1)
        engine.rest()
        engine.rest()
    assert engine.calls == ["sleep", "wake", "sleep"]


def test_vllm_wakes_once_for_new_weights():
    engine = RecordedVLLM(sleeps=True)
    engine.rest()
    engine.wake()
    engine.expect(episodes=1, at_once=1)
    assert engine.calls == ["sleep", "wake"]


def test_vllm_on_a_cpu_never_sleeps():
    engine = RecordedVLLM(sleeps=False)
    engine.rest()
    engine.expect(episodes=1, at_once=1)
    assert engine.calls == []


@pytest.mark.parametrize("sleeps", [True, False])
def test_sleep_mode_is_a_setting_of_vllm(sleeps):
    settings = engine_settings(
        dtype=torch.bfloat16,
        model_length=128,
        longest_text=None,
        max_running=4,
        kv_cache_gib=1.0,
        num_gpus=1,
        on_cpu=False,
        sleeps=sleeps,
    )
    assert settings["enable_sleep_mode"] is sleeps
