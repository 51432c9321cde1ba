"""Progress of a warm start without a terminal."""

import io
import time

from rich.console import Console

from siirl.imitation.work_progress import WorkProgress


def test_a_log_file_gets_a_line_for_each_unfinished_task() -> None:
    text = io.StringIO()
    with WorkProgress(every_s=0.02, console=Console(file=text)) as progress:
        cloning = progress.add_task("behaviour cloning", total=300)
        progress.update(cloning, advance=7, description="behaviour cloning, loss 1.25")
        done = progress.add_task("demonstrations", total=2)
        progress.advance(done, 2)
        give_up_at = time.monotonic() + 30
        while not text.getvalue() and time.monotonic() < give_up_at:
            time.sleep(0.01)
    first = text.getvalue().splitlines()[0]
    assert first == "behaviour cloning, loss 1.25: 7/300, 0:00"
    assert "demonstrations" not in text.getvalue()


def test_a_terminal_gets_bars() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    with WorkProgress(every_s=0.001, console=console) as progress:
        progress.add_task("demonstrations", total=2)
    assert "━" in text.getvalue()
