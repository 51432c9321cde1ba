"""The page of benchmarks, from the files of benchmarks/results.

A result's own Markdown is included. Other results are shown by the parts that many share: success
before and after, ratios, and short lists of rows. The JSON files hold everything else. What a file
does not record is named, not guessed.
"""

import ast
import json
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generate.markdown import code, escaped, table

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
PICTURES = "pictures/benchmarks"

INTRODUCTION = """\
# Benchmarks

A section has the command that made its numbers, the machine, the versions and the revision, as far
as its file records them; what it does not record is named. The files are in `benchmarks/results/`
of the repository. Success rates have 95 % intervals (Wilson). [Limits](limits.md) says
what these numbers do not show.

"""
MOST_ROWS, MOST_COLUMNS = 24, 8  # of a list that is shown as a table


def page() -> str:
    """Markdown of the page."""
    return INTRODUCTION + "\n".join(_result(file) for file in sorted(RESULTS.glob("*.json")))


def _result(file: Path) -> str:
    result = json.loads(file.read_text())
    parts = [f"## {_title(file)}\n", _origin(file, result)]
    if result.get("notice"):
        parts.append(f"{escaped(result['notice'])}\n")
    picture = file.with_suffix(".png")
    if picture.exists():
        parts.append(f"![{_title(file)}]({PICTURES}/{picture.name})\n")
    parts += [*_runs(result), *_before_and_after(result)]
    own = file.with_suffix(".md")
    shown = [_own_words(own)] if own.exists() else [*_ratios(result), *_lists(result)]
    if len(parts) + len(shown) == 2:
        shown = ["The numbers are in the file; this page has no table of them.\n"]
    return "\n".join([*parts, *shown])


def _title(file: Path) -> str:
    return file.stem.replace("_", " ").capitalize()


def _origin(file: Path, result: Mapping[str, Any]) -> str:
    machine = result.get("machine", {})
    summary = f"benchmarks/results/{file.name}, machine and versions"
    return (
        f"{_command(file, result)}\n\n<details markdown><summary>{summary}</summary>\n\n"
        f"{escaped('; '.join(_facts(machine)))}\n\n</details>\n"
    )


def _command(file: Path, result: Mapping[str, Any]) -> str:
    """The recorded command, else the first of the benchmark of the same name."""
    if "command" in result:
        return code(result["command"])
    benchmark = RESULTS.parent / f"{file.stem}.py"
    if not benchmark.exists():
        return "The file does not record its command."
    lines = (ast.get_docstring(ast.parse(benchmark.read_text())) or "").splitlines()
    first = next(line for line in lines if line.startswith("    python -m "))
    return (
        "The file does not record its command. "
        f"`benchmarks/{benchmark.name}` names, for example, {code(first.partition('#')[0].strip())}"
    )


def _facts(machine: Mapping[str, Any]) -> Iterator[str]:
    if not machine:
        yield "machine, versions and revision are not recorded"
        return
    yield (
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gb']} GB, "
        f"Python {machine['python']}"
    )
    yield f"revision {machine['revision']}"
    versions = ", ".join(
        f"{name} {version}"
        for name, version in machine.get("versions", {}).items()
        if version != "not installed"
    )
    yield versions


def _runs(result: Mapping[str, Any]) -> Iterator[str]:
    """Success of each run before and after training, by the ways of choosing actions."""
    rows = []
    for run in result.get("runs", ()):
        stages = {name: run.get(name) for name in ("before", "after")}
        if all(isinstance(stage, Mapping) for stage in stages.values()):
            rows += [
                (escaped(str(run.get("arm", ""))), str(run.get("seed", "")), escaped(kind), *rates)
                for kind, rates in _rates(stages["before"], stages["after"])
            ]
    if rows:
        yield table(("arm", "seed", "actions", "before", "after"), rows)


def _rates(before: Any, after: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    for kind, first in before.items():
        last = after.get(kind, {})
        if "all" in first and "all" in last:
            yield kind, (_rate(first["all"]), _rate(last["all"]))


def _before_and_after(result: Mapping[str, Any]) -> Iterator[str]:
    before, after = result.get("before"), result.get("after")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return
    tasks = [name.split("/")[1] for name in before if name.endswith("/successes")]
    rows = [(task, *(_share(stage, f"val/{task}/") for stage in (before, after))) for task in tasks]
    yield table(("task", "before", "after"), rows)


def _share(stage: Mapping[str, float], prefix: str) -> str:
    successes, episodes = stage[f"{prefix}successes"], stage[f"{prefix}episodes"]
    return f"{successes / episodes:.1%} of {episodes:.0f}"


def _rate(tasks: Mapping[str, float]) -> str:
    return (
        f"{tasks['rate']:.1%} [{tasks['low']:.1%}, {tasks['high']:.1%}] of {tasks['episodes']:.0f}"
    )


def _ratios(result: Mapping[str, Any]) -> Iterator[str]:
    ratios = result.get("ratios")
    if isinstance(ratios, Mapping):
        rows = [
            (escaped(name), f"{ratio['median']:.2f}")
            for name, ratio in ratios.items()
            if isinstance(ratio, Mapping) and "median" in ratio
        ]
        yield table(("ratio", "median"), rows)


def _lists(result: Mapping[str, Any]) -> Iterator[str]:
    """Lists of rows that fit a page; repeated measurements are shown by their median."""
    for name in ("rates", "rows"):
        rows = [dict(_cells(row)) for row in result.get(name, ())]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        if rows and len(rows) <= MOST_ROWS and len(columns) <= MOST_COLUMNS:
            yield table(
                tuple(map(escaped, columns)),
                [tuple(escaped(row.get(column, "")) for column in columns) for row in rows],
            )


def _cells(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _cells(value, f"{prefix}{name}: ")
        elif isinstance(value, list) and value and isinstance(value[0], int | float):
            yield f"{prefix}{name}, median", f"{statistics.median(value):g}"
        else:
            yield f"{prefix}{name}", str(value)


def _own_words(file: Path) -> str:
    """The file without its title, its headings one level lower."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("# ")]
    return re.sub(r"^(#+ )", r"#\1", "\n".join(lines), flags=re.MULTILINE) + "\n"
