"""What a rank says when the exchange dies."""

import pytest
from ray.exceptions import RayActorError

from siirl.dag_worker.separate.ray_exchange import ExchangeLine
from siirl.errors import RunFailed


class DeadExchange:
    """A handle whose actor has died."""

    def __getattr__(self, method):
        return self

    def remote(self, *arguments):
        raise RayActorError(
            error_msg="The actor died. The actor is dead because its worker process has died. End "
            "of file."
        )


def test_the_cause_of_a_dead_exchange_ends_with_one_full_stop():
    with pytest.raises(RunFailed) as failed:
        ExchangeLine(DeadExchange()).call("take", 1, 4)
    assert "training ranks died: it was killed (kill -9, or" in str(failed.value)
    assert str(failed.value).endswith(" and env.envs_per_server.")
