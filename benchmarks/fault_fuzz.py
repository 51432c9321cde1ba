"""Checks the end of runs that are killed, stopped, interrupted or starved at random moments.

    # 88 trials, three quarters of an hour on two quiet cores
    python -m benchmarks.fault_fuzz
    python -m benchmarks.fault_fuzz --only 17                    # one of them again
    python -m benchmarks.fault_fuzz --only "GCS killed"          # all of a kind
    # some of them; the rows of the others stay in the results, each with its revision
    python -m benchmarks.fault_fuzz --from 40 --trials 60

A trial is drawn from the seed and its number: a job of seconds, one or two ranks, with Ray or
without, a kind of fault, and a moment, as a share of the time that an uninterrupted run of the job
takes. It is right if all of this holds:

- The command ends with a status that the fault allows, with a message and the command to resume,
  and without a traceback.
- A minute later no process of its session is left but Ray's agents, which end by themselves.
- `trainer.resume=auto` resumes from the newest checkpoint if there is one. A damaged checkpoint is
  refused by the name of its folder, and the run resumes from the one before.
- Weights and moments after the last step are those of an uninterrupted run, bit for bit; nothing
  unfinished is left on the disk.

A trial that is not right keeps its folder, which the table names.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fault_jobs import (
    JOBS,
    LIMIT_S,
    Command,
    Job,
    Reference,
    References,
    digests_after_last_step,
)
from benchmarks.fault_kinds import (
    FAULTS,
    KILLED,
    REFUSED,
    CannotBeMade,
    Fault,
    Moment,
    checkpoints_below,
)
from benchmarks.measured_on import describe_machine

RESULTS = Path(__file__).parent / "results"
SHARE_ON_RAY = 0.15  # of the trials whose fault exists in both clusters
TRACEBACK = "Traceback (most recent call last)"
RIGHT, SKIPPED = "right", "skipped"


@dataclass(frozen=True)
class Trial:
    """A fault, the job that it strikes, and its time."""

    number: int
    kind: str
    job: Job
    share: float
    """Time of the fault, as a share of the uninterrupted run."""
    seed: str


@dataclass(frozen=True)
class Outcome:
    """Result of a trial."""

    how: str
    """Summary in a few words."""
    wrong: tuple[str, ...] = ()
    """Conditions that were violated."""


def draw(number: int, seed: int) -> Trial:
    """The trial of a number: kinds take turns, everything else is drawn."""
    rng = random.Random(f"{seed}:{number}")
    kind = list(FAULTS)[number % len(FAULTS)]
    fault = FAULTS[kind]
    cluster = "ray" if "local" not in fault.clusters or rng.random() < SHARE_ON_RAY else "local"
    ranks = 1 if cluster == "local" else max(fault.least_ranks, rng.choice([1, 2]))
    job = Job(rng.choice(list(JOBS)), cluster=cluster, ranks=ranks, separate=fault.separate)
    return Trial(
        number=number,
        kind=kind,
        job=job,
        share=round(rng.uniform(0.02, 0.98), 3),
        seed=f"{seed}:{number}",
    )


def run_trial(trial: Trial, folder: Path, references: References) -> Outcome:
    """Inject the fault, then check how the run ends and resumes.

    Args:
        trial: Which.
        folder: Empty; gets the texts and results of its commands.
        references: Where the uninterrupted run of the job comes from.
    """
    fault, reference = FAULTS[trial.kind], references.of(trial.job)
    outputs = folder / "outputs"
    outputs.mkdir()
    rng = random.Random(trial.seed)
    try:
        with fault.disk(outputs):
            return _strike_and_go_on(trial, fault, reference, folder, outputs, rng)
    except CannotBeMade as error:
        return Outcome(how=f"{SKIPPED}: {error}")


def _strike_and_go_on(
    trial: Trial,
    fault: Fault,
    reference: Reference,
    folder: Path,
    outputs: Path,
    rng: random.Random,
) -> Outcome:
    run = Command(trial.job, outputs=outputs, log=folder / "struck.txt", words=fault.words)
    try:
        fault.strike(run, outputs, Moment(seconds=trial.share * reference.seconds, rng=rng))
        status = run.wait()
        wrong = [*wrong_ends(run, status, fault.statuses), *wrong_rests(run)]
    finally:
        run.kill_all()
    fault.mend(outputs)
    how = (
        "finished"
        if status == 0
        else "was killed"
        if status == KILLED
        else "stopped with a sentence"
    )
    if digests_after_last_step(outputs):
        how += " equal" if status == 0 else " after its last step, equal"
    else:
        how += go_on(trial, fault, folder, outputs, rng, wrong)
        unfinished = [] if fault.read_only else outputs.glob("*/*/checkpoints/.unfinished-*")
        wrong += [f"left: {path.relative_to(outputs)}" for path in unfinished]
    wrong += wrong_results(outputs, reference)
    return Outcome(how=how, wrong=tuple(wrong))


def go_on(
    trial: Trial, fault: Fault, folder: Path, outputs: Path, rng: random.Random, wrong: list[str]
) -> str:
    """Resume as a user would; what does not hold is added to `wrong`."""
    found = checkpoints_below(outputs)
    how = ", resumed equal" if found else ", begun anew equal"
    if fault.damage is not None and found:
        fault.damage(outputs, rng)
        damaged = Command(
            trial.job, outputs=outputs, log=folder / "refused.txt", words=("trainer.resume=auto",)
        )
        status = finish(damaged, wrong, allowed=frozenset({REFUSED}))
        if status != REFUSED:
            return ", read all the same, resumed equal"
        if str(found[-1].parent) not in damaged.text:
            wrong.append("the refusal does not name the checkpoint")
        earlier = f"trainer.resume={found[-2]}" if len(found) > 1 else "trainer.resume=null"
        finish(
            Command(trial.job, outputs=outputs, log=folder / "resumed.txt", words=(earlier,)), wrong
        )
        return ", damage refused, the checkpoint before resumed equal"
    with read_only(found[-1].parent.parent if found and fault.read_only else None):
        finish(
            Command(
                trial.job,
                outputs=outputs,
                log=folder / "resumed.txt",
                words=("trainer.resume=auto",),
            ),
            wrong,
        )
    return how


def finish(run: Command, wrong: list[str], *, allowed: frozenset[int] = frozenset()) -> int | None:
    """Let a command end; what is not right about its end is added to `wrong`."""
    try:
        status = run.wait()
        wrong += [
            f"{run.log.stem}: {what}"
            for what in (*wrong_ends(run, status, allowed), *wrong_rests(run))
        ]
    finally:
        run.kill_all()
    return status


@contextmanager
def read_only(folder: Path | None) -> Iterator[None]:
    """A folder that can only be read, also by root; None changes nothing.

    Raises:
        CannotBeMade: Without root nothing can be mounted.
    """
    if folder is None:
        yield
        return
    if subprocess.run(
        ["mount", "--bind", folder, folder], capture_output=True, check=False
    ).returncode:
        raise CannotBeMade("mounting a folder read-only needs root")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], capture_output=True, check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def wrong_ends(run: Command, status: int | None, allowed: frozenset[int]) -> list[str]:
    """Errors in the end of a command: its status and its last output."""
    text = run.text
    if status is None:
        return [f"still running after {LIMIT_S:.0f} s"]
    before_any_word = (
        status < 0 and 128 - status in allowed and not text
    )  # Python itself was starting, and no program had begun
    wrong = (
        []
        if status == 0 or status in allowed or before_any_word
        else [f"status {status}, not {sorted({0, *allowed})}"]
    )
    if TRACEBACK in text:
        wrong.append("a traceback")
    if status > 0:
        wrong += _wrong_last_words(text)
    return wrong


def _wrong_last_words(text: str) -> list[str]:
    lines = text.rstrip().splitlines()
    if not any(line.startswith("siirl: ") for line in lines):
        return ["no sentence"]
    said = re.search(r"^  run folder  (.+)$", text, flags=re.MULTILINE)
    if said is None or not (Path(said[1]) / "checkpoints" / "latest").is_file():
        return []
    resume = f"Resume with the same command and trainer.resume={said[1]}"
    return (
        [] if lines[-1] == resume else [f"the last line is not {resume!r} but {lines[-1][:120]!r}"]
    )


def wrong_rests(run: Command) -> list[str]:
    """Processes that a command has left."""
    return [f"left running: {title[:80]}" for title in run.left()]


def wrong_results(outputs: Path, reference: Reference) -> list[str]:
    """Differences between the results of the trial and of the uninterrupted run."""
    found = digests_after_last_step(outputs)
    if not found:
        return ["no run got to its last step"]
    return [
        f"other {name}"
        for digests in found
        for name in digests
        if digests[name] != reference.digests[name]
    ]


def row_of(trial: Trial, outcome: Outcome, seconds: float, folder: Path) -> dict[str, Any]:
    """A trial as plain data; `folder` is there where it is kept."""
    verdict = SKIPPED if outcome.how.startswith(SKIPPED) else "wrong" if outcome.wrong else RIGHT
    row = {
        "trial": trial.number,
        "kind": trial.kind,
        "job": str(trial.job),
        "share": trial.share,
        "seconds": round(seconds, 1),
        "load": round(os.getloadavg()[1]),
        "revision": describe_machine()["revision"],
    }
    kept = {"wrong": list(outcome.wrong), "folder": folder.name} if outcome.wrong else {}
    return {**row, "verdict": verdict, "how": outcome.how, **kept}


def table(rows: Iterable[dict[str, Any]]) -> str:
    """A row for each kind, and below them what was not right."""
    rows = list(rows)
    lines = ["| fault | trials | right | how they ended |", "|---|---|---|---|"]
    for kind in FAULTS:
        of_kind = [row for row in rows if row["kind"] == kind]
        counted = Counter(row["how"] for row in of_kind if row["verdict"] != "wrong")
        right = sum(row["verdict"] == RIGHT for row in of_kind)
        lines.append(
            f"| {kind} | {len(of_kind)} | {right} | "
            f"{'; '.join(f'{how} ({number})' for how, number in counted.items())} |"
        )
    right = sum(row["verdict"] == RIGHT for row in rows)
    jobs = Counter(row["job"] for row in rows)
    revisions = Counter(row["revision"] for row in rows)
    lines += [
        "",
        f"{right} of {len(rows)} right. Jobs: "
        f"{'; '.join(f'{job} ({number})' for job, number in sorted(jobs.items()))}. Revisions: "
        f"{'; '.join(f'{name} ({number})' for name, number in revisions.items())}.",
        "",
    ]
    lines += [
        f"- Trial {row['trial']}, {row['kind']}, {row['job']}, at {row['share']}: "
        f"{'; '.join(row['wrong'])} (folder {row['folder']})"
        for row in rows
        if row["verdict"] == "wrong"
    ]
    return "\n".join([*lines, ""])


def earlier_rows(output: Path) -> dict[int, dict[str, Any]]:
    """Rows of a result by the number of their trial; those of a first run have its revision."""
    if not output.is_file():
        return {}
    result = json.loads(output.read_text())
    revision = result["machine"]["revision"]
    return {row["trial"]: {"revision": revision, **row} for row in result["rows"]}


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the trials; write the table and its rows after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=88, help="end of the trials' numbers (88)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0, help="first trial's number")
    parser.add_argument(
        "--only", help="the number of a trial, or a kind; results are printed and not written"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="for what the commands write; by default a new one in the system's folder for that",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "fault_fuzz.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))

    folder = Path(tempfile.mkdtemp(prefix="fault_fuzz_")) if flags.folder is None else flags.folder
    references = References(folder / f"references_{int(time.time())}")
    trials = [draw(number, flags.seed) for number in range(flags.first, flags.trials)]
    if flags.only is not None:
        trials = [trial for trial in trials if flags.only in (str(trial.number), trial.kind)]
    rows = {} if flags.only is not None else earlier_rows(flags.output)
    command = " ".join(["python -m benchmarks.fault_fuzz", *sys.argv[1:]])
    for trial in trials:
        rows[trial.number] = _run_and_tell(trial, folder, references)
        by_number = [rows[number] for number in sorted(rows)]
        if flags.only is None:
            flags.output.parent.mkdir(parents=True, exist_ok=True)
            result = {
                "command": command,
                "machine": describe_machine(),
                "seed": flags.seed,
                "rows": by_number,
            }
            flags.output.write_text(json.dumps(result, indent=1) + "\n")
            flags.output.with_suffix(".md").write_text(f"# {command}\n\n{table(by_number)}")
    print(table(rows.values()))


def _run_and_tell(trial: Trial, folder: Path, references: References) -> dict[str, Any]:
    own = folder / f"trial_{trial.number:03d}"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    begin = time.monotonic()
    outcome = run_trial(trial, own, references)
    row = row_of(trial, outcome, time.monotonic() - begin, own)
    told = f"{row['verdict']:<8} {outcome.how} {'; '.join(outcome.wrong)}"
    print(
        f"{trial.number:3d} {trial.kind:<30} {trial.job!s:<28} {trial.share:5.2f} "
        f"{row['seconds']:6.1f} s  {told}",
        flush=True,
    )
    if not outcome.wrong:
        shutil.rmtree(own)
    else:
        print(f"    {own}", flush=True)
    return row


if __name__ == "__main__":
    main()
