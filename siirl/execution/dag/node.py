"""One step of an algorithm: a function, its predecessors, and the batch columns that it uses.

A node's function is called with keyword arguments for its parameters (`function_names.OFFERED`). It
gets a shallow copy of the batch, so that assigning `batch["x"]` does not change other nodes'
batches. Required columns are checked before the call, and provided columns after it. Columns of a
function without a declaration are recorded when it has run. Left out: which process runs a node
(siirl.execution.scheduler).
"""

import dataclasses
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral
from operator import methodcaller
from typing import Any

from envs.mistakes import describe_exit
from siirl.errors import ConfigError, InvariantError, RunFailed
from siirl.execution.dag.columns import Columns, column_set, declared_columns
from siirl.execution.dag.function_names import (
    arguments_for,
    check_signature,
    describe,
    resolve_function,
)
from siirl.execution.dag.node_config import BUFFER, MODEL_PARAMETERS, check_config
from siirl.execution.dag.node_output import NodeOutput

logger = logging.getLogger(__name__)


class NodeType(Enum):
    """Kind of work of a node."""

    COMPUTE = "COMPUTE"
    DATA_LOAD = "DATA_LOAD"
    ENV_INTERACT = "ENV_INTERACT"
    MODEL_INFERENCE = "MODEL_INFERENCE"
    MODEL_TRAIN = "MODEL_TRAIN"
    PUT_TO_BUFFER = "PUT_TO_BUFFER"
    GET_FROM_BUFFER = "GET_FROM_BUFFER"
    BARRIER_SYNC = "BARRIER_SYNC"
    CUSTOM = "CUSTOM"


class NodeRole(Enum):
    """The component that a node belongs to."""

    DEFAULT = "DEFAULT"
    ACTOR = "ACTOR"
    ADVANTAGE = "ADVANTAGE"
    CRITIC = "CRITIC"
    ROLLOUT = "ROLLOUT"
    REFERENCE = "REFERENCE"
    REWARD = "REWARD"
    DYNAMIC_SAMPLING = "DYNAMIC_SAMPLING"


class NodeStatus(Enum):
    """State of a node in the current step; READY: its dependencies have run."""

    PENDING = "PENDING"
    READY = "READY"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


RETRY_AFTER_S, LONGEST_WAIT_S = 0.5, 60.0  # doubled each time: a server restarts in seconds
REPEATABLE_TYPES = frozenset({NodeType.COMPUTE, NodeType.CUSTOM})
BUFFER_TYPES = frozenset({NodeType.PUT_TO_BUFFER, NodeType.GET_FROM_BUFFER})
MODEL_ROLES = frozenset({NodeRole.ACTOR, NodeRole.CRITIC, NodeRole.ROLLOUT, NodeRole.REFERENCE})
MODEL_TYPES = frozenset({NodeType.MODEL_TRAIN, NodeType.MODEL_INFERENCE})


@dataclass(eq=False)
class Node:
    """A node of a TaskGraph; pickled with the name of its function, which the receiver imports."""

    node_id: str
    node_type: NodeType
    node_role: NodeRole = NodeRole.DEFAULT
    only_forward_compute: bool = False
    """A forward pass, which changes no weights."""
    moves_rows: bool = False
    """Whether its function may give rows to other ranks."""
    agent_group: int = 0
    """The agent whose models the node uses, if several agents are trained."""
    group: str | None = None
    """Resource group whose ranks run it; None: by its role (`resource_groups`)."""
    dependencies: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    """Settings of the node; its function reads them from `node.config` (`node_config`)."""
    executable_ref: str | Callable[..., Any] | None = None
    """`module:Class.method`, `module.function` or a callable; None passes the batch on."""
    filter_plugin: str | Callable[..., bool] | None = None
    """Accepts samples (SampleInfo -> bool) at a node that shares rows among ranks. Rejected ones
    are dropped before the transfer.
    """
    retry_limit: int = 0
    """Calls after a ConnectionError or TimeoutError (a remote grader); for COMPUTE and CUSTOM
    nodes.
    """
    requires: Iterable[str] | None = None
    """Columns it reads, in addition to those that its function declares."""
    provides: Iterable[str] | None = None
    """Columns it adds, in addition to those that its function declares. None if neither declares
    any: unknown until it has run.
    """
    waived: frozenset[str] = frozenset()
    """Required columns whose provider is skipped; see TaskGraph.skip_node."""
    aliases: tuple[str, ...] = ()
    """Other ids by which dependencies may name it."""
    skip_reason: str | None = None
    """Why it does not run; see TaskGraph.skip_node."""
    status: NodeStatus = field(default=NodeStatus.PENDING, init=False)

    def __post_init__(self) -> None:
        settings: object = self.config  # a user's pipeline may be untyped
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"Node {self.node_id!r}: config must be a mapping, but is {settings!r:.80}."
            )
        if self.retry_limit < 0:
            raise ConfigError(f"Node {self.node_id!r}: retry_limit={self.retry_limit} is negative.")
        if self.retry_limit and self.node_type not in REPEATABLE_TYPES:
            raise ConfigError(
                f"Node {self.node_id!r}: retry_limit={self.retry_limit} on a "
                f"{self.node_type.value} node. Its ranks work together, so a rank that repeats its "
                "part leaves the others waiting. Only COMPUTE and CUSTOM nodes are repeated."
            )
        self.requires = None if self.requires is None else column_set(self.requires)
        self.provides = None if self.provides is None else column_set(self.provides)
        self._executable: Callable[..., Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_executable": None}

    @property
    def label(self) -> str:
        """Name of the node in messages."""
        return f"node {self.node_id!r}"

    @property
    def runs_a_model(self) -> bool:
        """Whether its work grows with the size of a model."""
        return self.node_role in MODEL_ROLES and self.node_type in MODEL_TYPES

    @property
    def syncs_weights(self) -> bool:
        """Whether it gives an agent group's new weights to what acts with them."""
        return self.node_type is NodeType.BARRIER_SYNC and self.node_role is NodeRole.ROLLOUT

    @property
    def executable(self) -> Callable[..., Any] | None:
        """The function, imported on first access; UnknownNameError or ConfigError if the name is
        invalid.
        """
        if self._executable is None and self.executable_ref is not None:
            self._executable = resolve_function(self.executable_ref, owner=self.label)
        return self._executable

    @property
    def filter(self) -> Callable[..., bool] | None:
        """The imported filter plug-in; the node's function has a parameter `node` and calls it."""
        return (
            None
            if self.filter_plugin is None
            else resolve_function(self.filter_plugin, owner=f"filter of {self.label}")
        )

    @property
    def required_columns(self) -> frozenset[str]:
        """Columns that must exist before it runs: declared by its function or by the node."""
        if self.skip_reason is not None:
            return frozenset()
        return self._union(self.requires, self._function_columns().requires) - self.waived

    @property
    def provided_columns(self) -> frozenset[str] | None:
        """Columns that exist after it has run; None if neither the function nor the node declares
        any.
        """
        if self.skip_reason is not None or self.executable_ref is None:
            return frozenset()
        declared = self._function_columns().provides
        return (
            None
            if self.provides is None and declared is None
            else self._union(self.provides, declared)
        )

    @property
    def optional_columns(self) -> frozenset[str]:
        """Columns that its function reads if they exist, or if the configuration requires them."""
        return frozenset() if self.skip_reason is not None else self._function_columns().optional

    def require(self, names: Iterable[str]) -> None:
        """Require those of `names` that are optional, because the configuration makes its function
        read them.
        """
        self.requires = self._union(self.requires, self.optional_columns & frozenset(names))

    def check(self) -> None:
        """Import the functions and check their signatures, and `config`; UnknownNameError or
        ConfigError on a mismatch.
        """
        if self.executable is not None:
            check_signature(self.executable, owner=self.label)
        if self.filter is not None:
            self._check_filter(self.filter)
        check_config(self.config, self.executable, read=self._keys_read(), owner=self.label)

    def copy(self) -> "Node":
        """A copy of the node that has not run, with its own containers."""
        return dataclasses.replace(
            self, dependencies=list(self.dependencies), config=dict(self.config)
        )

    def run(
        self,
        *,
        batch: Any,
        copy: Callable[[Any], Any] = methodcaller("copy"),
        settle: Callable[[Any], object] = lambda batch: None,
        **available: Any,
    ) -> NodeOutput:
        """Call the function on a shallow copy of `batch`.

        Args:
            batch: The columns so far (TensorDict or dict).
            copy: Makes the copy, because the batch's own method may be slow.
            settle: Receives the returned batch; may correct or refuse it.
            available: `config`, `context`, `process_group`, `agent_group` and further arguments;
                the function gets those that it has parameters for, and `node`.

        Raises:
            ConfigError: A required column is missing, or the function has a parameter that the
                caller does not provide.
            InvariantError: The function returned no batch, or declared columns are missing.
        """
        if self.skip_reason is not None:
            self.status = NodeStatus.SKIPPED
            return NodeOutput(batch=batch)
        with self._running():
            if self.executable is None:
                return NodeOutput(batch=batch)
            before = self._checked_input(batch)
            failures = 0
            while True:
                arguments = arguments_for(
                    self.executable,
                    {**available, "node": self, "batch": copy(batch)},
                    owner=self.label,
                )
                try:
                    result = self.executable(**arguments)
                    break
                except (ConnectionError, TimeoutError) as error:
                    failures += 1
                    if failures > self.retry_limit:
                        raise
                    self._wait_after(failures, error)
            output = self._as_output(result, self.executable)
            self._check_output(output, before=before)
            settle(output.batch)
        return output

    def _wait_after(self, failures: int, error: Exception) -> None:
        wait_s = min(RETRY_AFTER_S * 2 ** (failures - 1), LONGEST_WAIT_S)
        logger.warning(
            "%s: %s: %s. Retry %d of %d follows in %g s.",
            *(self.label, type(error).__name__, error, failures, self.retry_limit, wait_s),
        )
        time.sleep(wait_s)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Update the status, and name the node in errors."""
        self.status = NodeStatus.RUNNING
        try:
            yield
        except Exception as error:
            self.status = NodeStatus.FAILED
            error.add_note(f"(while {self.label} ran)")
            raise
        except SystemExit as error:  # it would end the run without a message
            self.status = NodeStatus.FAILED
            raise RunFailed(
                f"A function that {self.label} called ended with {describe_exit(error)}."
            ) from error
        self.status = NodeStatus.COMPLETED

    def _keys_read(self) -> frozenset[str]:
        """Keys of `config` that siirl reads from such a node."""
        keys = {BUFFER: self.node_type in BUFFER_TYPES, MODEL_PARAMETERS: self.runs_a_model}
        return frozenset(key for key, is_read in keys.items() if is_read)

    def _check_filter(self, filter_plugin: Callable[..., bool]) -> None:
        """Refuse a filter that is never called, or that cannot be called with a SampleInfo."""
        if self.executable is None or "node" not in inspect.signature(self.executable).parameters:
            raise ConfigError(
                f"Node {self.node_id!r} has filter_plugin={self.filter_plugin!r}, which its "
                "function would never call: put it on the node "
                "that shares rows among ranks (siirl.dag_worker.stages:data_rebalance), or on one "
                "whose function asks for `node`."
            )
        try:
            inspect.signature(filter_plugin).bind(None)
        except (TypeError, ValueError) as error:  # or a signature that cannot be read
            raise ConfigError(
                f"The filter {describe(filter_plugin)} of {self.label} is called with a "
                f"SampleInfo: {error}."
            ) from error

    def _checked_input(self, batch: Any) -> frozenset[str]:
        """Names of the columns; refuses a batch without the required ones."""
        there = frozenset(batch.keys())
        if missing := sorted(self.required_columns - there):
            raise ConfigError(
                f"Node {self.node_id!r} requires the columns {missing}, which are not in the "
                f"batch. Available: {sorted(there)}."
            )
        return there

    def _check_output(self, output: NodeOutput, *, before: frozenset[str]) -> None:
        """Refuse a batch without the declared columns; undeclared columns are measured."""
        there = frozenset(output.batch.keys())
        if self.provided_columns is None:
            self.provides = there - before
        elif missing := sorted(self.provided_columns - there):
            raise InvariantError(
                f"Node {self.node_id!r} declares the columns {missing}, but its batch lacks them. "
                f"Available: {sorted(there)}."
            )

    def _as_output(self, result: Any, function: Callable[..., Any]) -> NodeOutput:
        output = result if isinstance(result, NodeOutput) else NodeOutput(batch=result)
        if not isinstance(output.batch, MutableMapping):
            raise InvariantError(
                f"{describe(function)} of {self.label} returned {type(output.batch).__name__}. "
                "Return NodeOutput(batch=..., metrics=...) or the batch."
            )
        more = output.more_prompts
        if not isinstance(more, Integral) or more < 0:
            raise InvariantError(
                f"{describe(function)} of {self.label} returned more_prompts={more!r}: return a "
                "whole number, 0 for none."
            )
        return output

    @staticmethod
    def _union(*parts: Iterable[str] | None) -> frozenset[str]:
        return frozenset().union(*(part for part in parts if part is not None))

    def _function_columns(self) -> Columns:
        """Columns of the function's decorator."""
        return Columns() if self.executable is None else declared_columns(self.executable)
