"""The plan of a run as text for a terminal."""

import math
import textwrap
from collections.abc import Sequence

from envs.names import listed_tasks
from siirl.preflight.gpu_fit import table_lines
from siirl.preflight.group_placement import GroupPlan
from siirl.preflight.memory import counted, shortage, size_text
from siirl.preflight.plan import Plan, ResumePoint
from siirl.terminal.printable import printable
from siirl.terminal.terminal_lines import USUAL_COLUMNS

LEAST_TEXT = 40  # columns beside a topic; on a narrower terminal the text goes below it
BELOW = 4  # indent of that text
ROWS_BEFORE_START = 64  # per list of prompt files: a second, with large pictures
ROWS_READ = (
    f"the first {ROWS_BEFORE_START} of each list of prompt files were read, with their pictures; "
    "the run reads all of them before its first step"
)
TRAINS_NOTHING = "nothing: no node of this graph updates a model; the run plays and scores episodes"
UNGRADED_ROWS = (
    "includes rows that the environment cannot grade (no ground truth, or a style that needs a "
    "judge): only your reward scores them, and success rates leave them out (env.kwargs.ungraded)"
)


def render(plan: Plan, *, columns: int = USUAL_COLUMNS) -> str:
    """The plan as text in lines of at most `columns`, one topic per line."""
    lines = [
        ("pipeline", f"{plan.pipeline.name}: {plan.pipeline.paths[0]}"),
        *(("join" if " + " in path else "branch", path) for path in plan.pipeline.paths[1:]),
        *(("skipped", f"{node}: {reason}") for node, reason in plan.pipeline.skipped),
        *([] if plan.pipeline.trains else [("trains", TRAINS_NOTHING)]),
        ("ranks", _render_ranks(plan)),
        *((f"group {group.name}", _render_group(group)) for group in plan.groups),
        *([("staleness", _render_staleness(plan))] if plan.groups else []),
        *_lines_of_agents(plan),
        *_lines_of_begin(plan.begins),
        ("length", _render_length(plan)),
        (
            "memory",
            f"about {size_text(plan.needs.memory_bytes)}, estimated ({_render_memory(plan)})",
        ),
        *(table_lines(plan.needs.rank_memory, gpu=plan.machine.gpu) if plan.machine.gpu else ()),
        (
            "disk",
            f"about {size_text(plan.needs.disk_bytes)} for checkpoints, videos and logs, estimated",
        ),
        ("time", _render_time(plan)),
    ]
    elsewhere = plan.cluster not in ("local", "ray")  # on machines of an address
    lacking = shortage(
        plan.needs.memory_parts,
        free_memory_bytes=math.inf if elsewhere else plan.machine.free_memory_bytes,
    )
    lines += [] if lacking is None else [("WARNING", lacking)]
    width = max(len(name) for name, _ in lines)
    texts = (_hanging(name, value, column=width + 4, columns=columns) for name, value in lines)
    return "\n".join(["Plan", *texts])


def _lines_of_begin(begins: ResumePoint | None) -> list[tuple[str, str]]:
    """Where a run with `trainer.resume` starts, and what it changes."""
    if begins is None:
        return []
    changed = ", ".join(begins.changed)
    return [("begins", begins.words), *([("changed", changed)] if changed else [])]


def _lines_of_agents(plan: Plan) -> list[tuple[str, str]]:
    """Tasks, sizes and updates of the run's policy, or of each agent's."""
    if not plan.agents_of_run:
        return _lines_of_agent(plan)
    lines = []
    for name, own in plan.agents_of_run:
        lines += [(f"{name} {topic}", text) for topic, text in _lines_of_agent(own)]
    return lines


def _lines_of_agent(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("policy", plan.policy),
        ("tasks", f"{plan.env}: {_render_tasks(plan)}"),
        *([("roles", _render_roles(plan))] if plan.roles else []),
        ("environments", _render_environments(plan)),
        *([("servers", _render_servers(plan))] if plan.servers else []),
        ("a step", _render_step(plan)),
        ("update", _render_update(plan)),
        *([("policy rate", plan.update.rate)] if plan.update.nodes else []),
        *([("loss", plan.update.loss)] if plan.pipeline.trains else []),
        *([("critic", plan.update.critic)] if plan.update.critic is not None else []),
        *([("rows", ROWS_READ)] if plan.length.file_epochs is not None else []),
        *([("grades", UNGRADED_ROWS)] if plan.ungraded else []),
        *([("start", plan.start)] if plan.start is not None else []),
    ]


def _hanging(name: str, value: str, *, column: int, columns: int) -> str:
    """A topic in the left column and its text beside it, or below it if there is little room."""
    below = columns - column < LEAST_TEXT
    indent = BELOW if below else column
    text = textwrap.wrap(
        printable(value, keep=""), columns - indent, break_on_hyphens=False, break_long_words=False
    )
    first = f"  {name}\n{' ' * indent}" if below else f"  {name:<{column - 2}}"
    return first + ("\n" + " " * indent).join(text)


def _render_tasks(plan: Plan) -> str:
    if plan.length.file_epochs is not None:
        return "questions of data.train_files"
    return listed_tasks(plan.tasks) + (
        "; more prompts for tasks of medium success" if plan.task_sampling == "learnable" else ""
    )


def _render_roles(plan: Plan) -> str:
    return ", ".join(f"{name} played by agent {group}" for name, group in plan.roles)


def _render_ranks(plan: Plan) -> str:
    machines = f" on {plan.machines} machines" if plan.machines > 1 else ""
    local = plan.cluster == "local"
    place = "one process, cluster=local" if local else f"Ray actors, cluster={plan.cluster}"
    return f"{plan.ranks}{machines} ({place})"


def _render_environments(plan: Plan) -> str:
    if plan.episodes_of is not None:
        return f"none: it trains on the episodes of agent {plan.episodes_of}"
    number = plan.num_servers * plan.envs_per_server
    found = f"{counted(plan.num_servers, 'server')} x {plan.envs_per_server} = {number}"
    alone = plan.cluster == "local" and number > 1
    return f"{found}, which take turns in that one process" if alone else found


def _render_group(group: GroupPlan) -> str:
    ranks = _numbers("rank", group.ranks)
    machines = _numbers("machine", group.machines)
    chains = {agent: " -> ".join(nodes) for agent, nodes in group.nodes.items()}
    if len(chains) == 1:
        [nodes] = chains.values()
    else:
        nodes = "; ".join(f"agent {agent}: {chain}" for agent, chain in chains.items())
    return f"{ranks} ({group.why}) on {machines}: {nodes}"


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    """`rank 0`, `ranks 0-3` or `ranks 0, 2`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    in_a_row = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]}-{numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))
    return f"{noun}s {listed}"


def _render_staleness(plan: Plan) -> str:
    if plan.max_staleness == 0:
        return "0: a step's rollouts wait for the weights of the previous step"
    behind = f"at most {counted(plan.max_staleness, 'step')}"
    if plan.streams:
        return f"{behind}: episodes are started continuously, and new weights reach running ones"
    return f"{behind}: step k is rolled out with the weights of step k - {plan.max_staleness + 1}"


def _render_servers(plan: Plan) -> str:
    servers = ", ".join(plan.servers)
    return f"{servers} generate, one per rank; new weights go {plan.way_of_weights}"


def _render_step(plan: Plan) -> str:
    if plan.decisions is not None:
        return (
            f"{counted(plan.prompts, 'environment')} x {counted(plan.decisions, 'decision')} = "
            f"{plan.prompts * plan.decisions} decisions, across the ends of episodes"
        )
    factors = [counted(plan.prompts, "prompt"), counted(plan.group_size, "rollout")]
    if plan.agents != 1:
        factors.append(counted(plan.agents, "role" if plan.varies else "agent"))
    return f"{' x '.join(factors)} = {_at_most(plan)}{plan.trajectories} trajectories"


def _at_most(*plans: Plan) -> str:
    """Prefix of a number that is smaller if an agent has no turn in an episode."""
    return "at most " if any(plan.varies for plan in plans) else ""


def _render_update(plan: Plan) -> str:
    if not plan.pipeline.trains:
        return "none: no node of this graph trains a model, so the weights do not change"
    if not plan.update.nodes:
        return "none of the policy: the graph trains only the critic"
    passes = f"{plan.update.epochs} passes over " if plan.update.epochs > 1 else ""
    nodes = f"{plan.update.nodes} nodes x " if plan.update.nodes > 1 else ""
    batches = (
        f"{nodes}{counted(plan.update.mini_batches, 'mini-batch', 'es')} of "
        f"{plan.update.trajectories_per_mini_batch} "
        f"{'trajectories' if plan.decisions is None else 'decisions'}"
    )
    micro_batches = (
        f"a rank takes {counted(plan.update.micro_batches, 'micro-batch', 'es')} of at most "
        f"{plan.update.micro_batch_size} for each"
    )
    for budget, unit in (
        (plan.update.micro_batch_tokens, "token"),
        (plan.update.micro_batch_chunks, "chunk"),
    ):
        if budget is not None:
            micro_batches = (
                f"a rank takes micro-batches of at most {counted(budget, unit)} for each"
            )
    steps = f"{_at_most(plan)}{counted(plan.optimiser_steps, 'optimiser step')}"
    return f"{passes}{batches} = {steps}; {micro_batches}"


def _render_length(plan: Plan) -> str:
    bounds = (
        []
        if plan.length.max_minutes is None
        else [f"{plan.length.max_minutes:g} minutes of training"]
    )
    bounds += (
        []
        if plan.length.file_epochs is None
        else [f"{counted(plan.length.file_epochs, 'pass', 'es')} over the files"]
    )
    # files may have fewer held-out questions
    most = "" if plan.length.file_epochs is None else "at most "
    episodes = f"{most}{plan.length.val_episodes} episodes"
    if plan.length.steps is None:
        return f"steps until {' or '.join(bounds)}; evaluations of {episodes}"
    bound = f", at most {' or '.join(bounds)}" if bounds else ""
    agents = [own for _, own in plan.agents_of_run] or [plan]
    left = plan.length.steps - plan.length.done
    trajectories = left * sum(own.trajectories for own in agents)
    work = f"{_at_most(*agents)}{trajectories} trajectories"
    if plan.pipeline.trains:
        first = max(plan.length.done, plan.length.critic_warmup)
        updates = max(plan.length.steps - first, 0) * sum(own.optimiser_steps for own in agents)
        work += f", {_at_most(*agents)}{counted(updates, 'optimiser step')}"
    steps = counted(plan.length.steps, "step")
    if plan.length.done:
        steps = f"{left} of {steps}"
    return (
        f"{steps}{bound}: {work}; "
        f"{counted(plan.length.evaluations or 0, 'evaluation')} of {episodes}"
    )


def _render_memory(plan: Plan) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in plan.needs.memory_parts if size)


def _render_time(plan: Plan) -> str:
    if plan.needs.minutes is None:
        limit = plan.length.max_minutes
        bound = "" if limit is None else f"at most {limit:g} minutes of training; "
        return (
            f"{bound}the estimate is printed after the first step, because no benchmark has "
            f"env={plan.env} with this model and these prompts"
        )
    measured = f"from benchmarks and this machine's speed ({plan.machine.speed:.2g}x, measured now)"
    return (
        f"about {counted(round(plan.needs.minutes), 'minute')}, {measured}"
        if plan.needs.minutes >= 1
        else f"under a minute, {measured}"
    )
