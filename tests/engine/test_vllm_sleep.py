"""vLLM sleeps between rollouts on a GPU, until something needs it."""

from types import SimpleNamespace

import pytest
import torch

from siirl.engine.rollout.text_engine_base import TextEngineBase
from siirl.engine.rollout.vllm.vllm_engine import VLLMBase
from siirl.engine.rollout.vllm.vllm_settings import engine_settings
from siirl.errors import InvariantError


class RecordedVLLM(VLLMBase):
    """The engine without a vLLM behind it; records sleep and wake-up."""

    def __init__(self, *, sleeps: bool, device: str = "cpu", resets: bool = True) -> None:
        TextEngineBase.__init__(self, lockstep=False)
        self.sleeps, self.asleep = sleeps, False
        self.device, self.dtype = torch.device(device), torch.bfloat16
        self.model = SimpleNamespace(exported_names=(), exported_in_turn=lambda weights: ())
        self.calls: list[str] = []
        self.vllm = SimpleNamespace(
            sleep=lambda level: self.calls.append("sleep"),
            wake_up=lambda: self.calls.append("wake"),
            reset_prefix_cache=lambda: resets,
        )

    def _wait(self, work):
        return work

    def _on_workers(self, method, *arguments):
        self.calls.append(method)
        return []

    def _probe(self):
        return "probe"

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


def test_a_waking_vllm_finds_the_memory_that_an_update_freed(monkeypatch):
    engine = RecordedVLLM(sleeps=True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: engine.calls.append("empty"))
    engine.expect(episodes=1, at_once=1)
    engine.rest()
    engine.wake()
    assert engine.calls == ["sleep", "empty", "wake"]


def test_the_last_bucket_is_freed_after_the_workers_have_closed_it(monkeypatch):
    engine = RecordedVLLM(sleeps=True, device="cuda")
    monkeypatch.setattr("torch.cuda.ipc_collect", lambda: engine.calls.append("collect"))
    assert engine.take_weights([]) == ["probe"]
    assert engine.calls == ["siirl_begin_weights", "siirl_finish_weights", "collect"]


def test_keys_and_values_of_old_weights_end_the_run():
    with pytest.raises(InvariantError, match="vLLM kept keys and values of the old weights"):
        RecordedVLLM(sleeps=False, resets=False).take_weights([])


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
