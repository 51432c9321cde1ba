"""Messages between the command and its ranks on Ray: activity, stop and stack-trace requests.

They use the key-value store of Ray's head, so they need no additional process or port. A rank sends
from a separate thread while it computes. Each side polls every `EVERY_S`.
"""

import dataclasses
import json
import threading
import time
import uuid
from pathlib import Path

import ray
from ray.exceptions import RpcError
from ray.experimental import internal_kv

from siirl import stacks
from siirl.errors import RunFailed
from siirl.execution.scheduler.vitals import Vitals
from siirl.execution.scheduler.watchdog import WRITTEN_WITHIN_S, HangDetector, hang_sentence
from siirl.interrupts import STOP
from siirl.occupation import OCCUPATION, Snapshot

EVERY_S = 0.5
END, STACKS = "end", "stacks"


def message_prefix() -> str:
    """Key prefix of the messages of one run."""
    return f"siirl/{uuid.uuid4().hex}/"


def _read(key: str) -> str | None:
    found: bytes | None = internal_kv._internal_kv_get(key)
    return None if found is None else found.decode()


class RankReporter:
    """The rank's side: a thread that reports its activity and receives the command's requests."""

    def __init__(self, post: str, rank: int) -> None:
        self._post, self._rank = post, rank
        stacks.register(f"rank_{rank}")
        threading.Thread(target=self._report, name="siirl-rank-reporter", daemon=True).start()

    def _report(self) -> None:
        shown = False
        while ray.is_initialized():
            try:
                words = json.dumps(dataclasses.asdict(OCCUPATION.snapshot()))
                internal_kv._internal_kv_put(f"{self._post}{self._rank}", words)
                number, folder = _read(self._post + END), _read(self._post + STACKS)
            except RpcError:
                return  # Ray's head is gone, and this process ends with it
            if number is not None and STOP.number is None:
                STOP.request(int(number))
            if folder is not None and not shown:
                shown = True
                stacks.write_here(Path(folder))
            time.sleep(EVERY_S)


class Supervision:
    """The command's side: forwards stop requests, and raises if the ranks hang or Ray has died.

    Args:
        vitals: Checks of the cluster.
        post: Key prefix of the messages of the run.
        ranks: Number of ranks.
        limit_s: Seconds without progress after which a rank hangs; None: no limit.
        folder: Folder of the stack traces.
    """

    def __init__(
        self, vitals: Vitals, *, post: str, ranks: int, limit_s: float | None, folder: Path
    ) -> None:
        self.vitals = vitals
        self._post = post
        self._ranks = ranks
        self._limit_s = limit_s
        self._folder = folder
        self._detector = HangDetector(ranks=ranks, limit_s=limit_s)
        self._asked = False

    def check(self) -> None:
        """Perform one check; cheap enough to call often.

        Raises:
            RunFailed: The ranks hang, or a process of Ray's has died.
        """
        self.vitals.check()
        try:
            if STOP.requested and not self._asked:
                internal_kv._internal_kv_put(self._post + END, str(STOP.number))
                self._asked = True
            said = [(rank, _read(f"{self._post}{rank}")) for rank in range(self._ranks)]
        except RpcError as error:
            self.vitals.explain()
            raise RunFailed(
                f"Ray's head no longer answers, and the ranks are lost: {error}"
            ) from error
        verdict = self._detector.look(
            {rank: Snapshot(**json.loads(words)) for rank, words in said if words is not None}
        )
        if verdict is None:
            return
        assert self._limit_s is not None
        internal_kv._internal_kv_put(self._post + STACKS, str(self._folder))
        stacks.write_here(self._folder)
        time.sleep(WRITTEN_WITHIN_S)
        raise RunFailed(hang_sentence(verdict, limit_s=self._limit_s, folder=self._folder))

    def close(self) -> None:
        """Delete the messages, which a persistent cluster would keep."""
        if ray.is_initialized():
            internal_kv._internal_kv_del(self._post, del_by_prefix=True)
