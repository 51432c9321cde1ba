"""The page of benchmarks, from the files of benchmarks/results.

A result's own Markdown is included. Other results are shown by the parts that many share: success
before and after, and ratios. The JSON files hold everything else.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generate.markdown import code, escaped, table

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
PICTURES = "pictures/benchmarks"

INTRODUCTION = """\
# Benchmarks

Every number has the command that made it, the machine, the versions and the revision. The files are
in `benchmarks/results/` of the repository. Success rates have 95 % intervals (Wilson).
[Limits](limits.md) says what these numbers do not show.

"""


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
    parts.append(_own_words(own) if own.exists() else "\n".join(_ratios(result)))
    return "\n".join(parts)


def _title(file: Path) -> str:
    return file.stem.replace("_", " ").capitalize()


def _origin(file: Path, result: Mapping[str, Any]) -> str:
    machine = result.get("machine", {})
    versions = ", ".join(
        f"{name} {version}"
        for name, version in machine.get("versions", {}).items()
        if version != "not installed"
    )
    facts = [
        f"{machine.get('cores')} cores of {machine.get('processor')}, "
        f"{machine.get('memory_gb')} GB, Python {machine.get('python')}",
        f"revision {machine.get('revision')}",
        versions,
    ]
    command = f"{code(result['command'])}\n\n" if "command" in result else ""
    return (
        f"{command}<details markdown><summary>benchmarks/results/{file.name}, machine and versions"
        f"</summary>\n\n{escaped('; '.join(facts))}\n\n</details>\n"
    )


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


def _own_words(file: Path) -> str:
    """The file without its title, its headings one level lower."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("# ")]
    return re.sub(r"^(#+ )", r"#\1", "\n".join(lines), flags=re.MULTILINE) + "\n"
