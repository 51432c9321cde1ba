"""A command whose main thread waits in C is ended when its cluster is lost."""

import socket
import threading
import time
from collections.abc import Callable

from siirl.execution.scheduler import cluster_watch
from siirl.execution.scheduler.cluster_watch import ClusterWatch
from siirl.execution.scheduler.vitals import Server, Vitals


class Ended:
    """Replaces the end of the process."""

    def __init__(self) -> None:
        self.with_: tuple[int, str] | None = None
        self.happened = threading.Event()

    def __call__(self, status: int, sentence: str) -> None:
        self.with_ = status, sentence
        self.happened.set()


def look_out(
    port: int, ended: Ended, node_lives: Callable[[], bool] = lambda: True
) -> ClusterWatch:
    vitals = Vitals([Server("Ray's GCS", "127.0.0.1", port, patience_s=0.0)])
    return ClusterWatch(vitals, node_lives=node_lives, end=ended)


def test_a_main_thread_that_does_not_notice_is_ended_with_the_sentence(monkeypatch) -> None:
    monkeypatch.setattr(cluster_watch, "MAIN_THREAD_S", 0.1)
    ended = Ended()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with look_out(port, ended):
        ended.happened.wait()
    assert ended.with_ is not None
    status, sentence = ended.with_
    assert status == 1 and sentence.startswith(f"the run failed: Ray's GCS (127.0.0.1:{port}) died")


def test_a_machine_that_the_cluster_has_given_up_is_lost(monkeypatch) -> None:
    monkeypatch.setattr(cluster_watch, "MAIN_THREAD_S", 0.1)
    ended = Ended()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        look_out(listener.getsockname()[1], ended, node_lives=lambda: False),
    ):
        ended.happened.wait()
    assert ended.with_ is not None and "counts this machine as dead" in ended.with_[1]


def test_a_gcs_that_takes_connections_and_gives_no_answer_is_lost(monkeypatch) -> None:
    monkeypatch.setattr(cluster_watch, "MAIN_THREAD_S", 0.1)
    monkeypatch.setattr(cluster_watch, "SILENT_LOOKS", 2)
    monkeypatch.setattr(cluster_watch, "LAST_ANSWER_S", 0.1)
    ended, silent = Ended(), threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        look_out(listener.getsockname()[1], ended, node_lives=silent.wait),
    ):
        ended.happened.wait()
    silent.set()
    assert ended.with_ == (1, "the run failed: Ray's GCS accepts connections but does not answer.")


def test_nothing_is_asked_after_the_end_of_a_session() -> None:
    ended, asked = Ended(), threading.Event()
    answers = []

    def slow_answer() -> bool:
        asked.set()
        watch._over.wait()
        time.sleep(0.3)  # the session ends meanwhile
        answers.append(True)
        return True

    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch = look_out(listener.getsockname()[1], ended, node_lives=slow_answer)
        with watch:
            asked.wait()
        assert answers == [True] and not watch._asks.is_alive()


def test_a_session_that_ends_by_itself_is_left_alone() -> None:
    ended = Ended()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch = look_out(listener.getsockname()[1], ended)
        with watch:
            pass
        watch._thread.join()
    assert ended.with_ is None
