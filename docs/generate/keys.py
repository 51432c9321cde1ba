"""The page of configuration keys, from the schema and from the table of who reads a key.

"Read in" is computed: each shipped pipeline is composed with each environment that it runs on, and
the conditions of `siirl.preflight.key_readers` are evaluated on the result.
"""

import functools
import inspect
import re
from collections.abc import Iterator, Mapping

from docs.generate.markdown import code, escaped, table
from envs.registry import env_class
from siirl.errors import SiirlError
from siirl.params.aliases import ALIASES, EXPLANATIONS
from siirl.params.build import as_text
from siirl.params.config_groups import options, summary
from siirl.params.env_args import POOL_KEYS
from siirl.params.parser import parse_config
from siirl.params.schema import Key, groups_of, keys_of, type_name
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.key_readers import READERS, ROBOTS_ONLY

TEXT_ENVIRONMENTS = ("math", "tools", "sandbox")
ROBOT_ENVIRONMENTS = ("metaworld", "libero", "gymnasium")
NEEDED = {"gymnasium": ("env.id=Pendulum-v1",)}
ONLY_ROBOTS = ("embodied_srpo",)

INTRODUCTION = """\
# Configuration keys

Set a key on the command line as `key=value`, in a file given by `--config FILE`, or through a group
(`pipeline=grpo`). Later ones of these override earlier ones: groups of the file, keys of the file,
groups of the command line, keys of the command line. A note names the keys of the file that a group
of the command line replaces. `siirl train --help` prints the same list, and
`siirl train ... --cfg job` prints the resolved configuration of a job without running it. An
unknown key is refused with the nearest known one; a key that is set and that nothing in the job
reads is refused with the condition under which it is read.

**Read in** names the shipped combinations of `pipeline=` and `env=` that read the key with their
default settings. A key that no default combination reads has a condition.

"""

Job = tuple[str, str]


def page() -> str:
    """Markdown of the page."""
    return INTRODUCTION + "\n".join([_groups(), *_sections(), _old_names()])


def _groups() -> str:
    rows = [
        (f"`{group}={name}`", escaped(summary(group, name)))
        for group, names in options().items()
        for name in names
    ]
    return "## Groups\n\n" + table(("option", "what it selects"), rows)


def _sections() -> Iterator[str]:
    for place, cls in groups_of(SiiRLArguments):
        keys = [
            key
            for key in keys_of(cls, place)
            if key.place.rpartition(".")[0] == place and not key.metadata.get("derived")
        ]
        if keys:
            title = place or "The root"
            doc = (cls.__doc__ or "").strip().split("\n\n")[0]
            yield f"## {title}\n\n{escaped(doc)}\n\n" + "\n".join(_key(key) for key in keys)


def _key(key: Key) -> str:
    facts = [escaped(type_name(key.hint)), f"default {code(as_text(key.default))}", *_bounds(key)]
    metadata = key.metadata
    lines = [escaped(metadata.get("help", ""))]
    if metadata.get("choices"):
        own = " A registered name or `module:name` also works." if metadata.get("plug_in") else ""
        names = ", ".join(f"`{name}`" for name in metadata["choices"])
        lines.append(f"Choices: {names}.{own}")
    if metadata.get("why"):
        lines.append(f"*Default*: {escaped(metadata['why'])}.")
    lines.append(f"*Read in*: {read_in(key)}")
    head = f"[`{key.place}`](#{key.place}){{ #{key.place} .key }} {', '.join(facts)}"
    return head + "\n:   " + "\n    ".join(lines) + "\n"


def _bounds(key: Key) -> Iterator[str]:
    metadata = key.metadata
    for name, words in (("minimum", "at least"), ("above", "above"), ("maximum", "at most")):
        if metadata.get(name) is not None:
            yield f"{words} {metadata[name]:g}"
    if metadata.get("filled"):
        yield "not empty"
    if metadata.get("unique"):
        yield "without repetitions"


def read_in(key: Key) -> str:
    """Default jobs that read `key`, and the conditions if not all do."""
    jobs = default_jobs()
    reading = {job for job, config in jobs.items() if _reads(config, key, text=is_text(job))}
    conditions = [_condition(reader.clause) for reader in READERS.get(key.place, ())]
    if reading == jobs.keys():
        return "every job."
    where = _combinations(reading, jobs) if reading else "no job by default"
    return f"{where}." if not conditions else f"{where}. {' '.join(conditions)}"


def _reads(config: SiiRLArguments, key: Key, *, text: bool) -> bool:
    if (key.metadata.get("text_only") and not text) or (key.place in ROBOTS_ONLY and text):
        return False
    if not _goes_into(config.env.name, key):
        return False
    return all(reader.applies(config) for reader in READERS.get(key.place, ()))


def _goes_into(env: str, key: Key) -> bool:
    """Whether an argument of an environment's constructor is one of `env`; true for other keys."""
    group, _, name = key.place.rpartition(".")
    if group != "env" or name in POOL_KEYS:
        return True
    return name in inspect.signature(env_class(env)).parameters


def _condition(clause: str) -> str:
    """`Read by gae.`, from the clause of a refusal, without its remedy and the job's own value."""
    said = clause.split(": ")[0].partition(", and ")[0]  # what follows is true of the job
    said = re.split(r"[,;] [^,;]*\{", said)[0]
    if "{" in said:
        raise ValueError(f"{clause!r} begins with the job's own value")
    return f"Read {escaped(said)}."


def _combinations(reading: set[Job], jobs: Mapping[Job, SiiRLArguments]) -> str:
    """The jobs by pipeline alone or by environment alone, if that says it."""
    for position, name in ((0, "pipeline"), (1, "env")):
        values = {job[position] for job in reading}
        if reading == {job for job in jobs if job[position] in values}:
            return f"`{name}=` " + ", ".join(
                f"`{value}`"
                for value in dict.fromkeys(job[position] for job in jobs)
                if value in values
            )
    return "; ".join(
        f"`pipeline={pipeline}` with "
        + ", ".join(
            f"`env={env}`" for other, env in jobs if other == pipeline and (other, env) in reading
        )
        for pipeline in dict.fromkeys(job[0] for job in jobs if job in reading)
    )


def is_text(job: Job) -> bool:
    """Whether a combination trains a language model."""
    return job[1] in TEXT_ENVIRONMENTS


@functools.cache
def default_jobs() -> dict[Job, SiiRLArguments]:
    """(pipeline, env) to the configuration that the two groups alone give."""
    jobs: dict[Job, SiiRLArguments] = {}
    for pipeline in options()["pipeline"]:
        for env in (*ROBOT_ENVIRONMENTS, *TEXT_ENVIRONMENTS):
            if env in TEXT_ENVIRONMENTS and pipeline in ONLY_ROBOTS:
                continue
            line = [f"pipeline={pipeline}", f"env={env}", *NEEDED.get(env, ())]
            try:
                jobs[pipeline, env] = parse_config(line)
            except SiirlError as error:
                raise ValueError(f"{' '.join(line)} is no default job: {error}") from error
    return jobs


def _old_names() -> str:
    rows = []
    for (key, value), replacement in ALIASES.items():
        meaning = " ".join(f"{name}={new}" for name, new in replacement) or EXPLANATIONS[key]
        rows.append((f"`{key}={value}`", escaped(meaning)))
    return "## Old names that are still accepted\n\n" + table(("old", "now"), rows)
