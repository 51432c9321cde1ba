"""The end of a worker's components: each is closed, whatever another one raises."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from siirl.dag_worker.components import WorkerComponents


@pytest.mark.parametrize("failing", ["checkpoints", "rollout", "reward"])
def test_a_component_that_cannot_be_closed_keeps_no_other_open(failing: str) -> None:
    closed = []

    def part(name: str) -> Any:
        def close(**_: float) -> None:
            closed.append(name)
            if name == failing:
                raise OSError(f"{name}: no space left on device")

        return SimpleNamespace(close=close)

    context = SimpleNamespace(
        config=SimpleNamespace(trainer=SimpleNamespace(grace_s=1.0)),
        reward=part("reward"),
        require_loader=lambda: part("loader"),
    )
    components = WorkerComponents(
        context=cast(Any, context),
        rollout=part("rollout"),
        validator=cast(Any, None),
        episode_log=part("episode log"),
        checkpoints=part("checkpoints"),
    )
    with pytest.raises(OSError, match=f"{failing}: no space left"):
        components.close()
    assert closed == ["checkpoints", "rollout", "episode log", "reward", "loader"]
