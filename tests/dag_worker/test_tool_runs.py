"""Whole runs of env=tools in one process, with tools that do not start:
they end, and the last message names the cause.
"""

import sys
from pathlib import Path

import pytest
from one_process import run

from siirl.errors import TooManyFailures

SMALL = (
    "env=tools", "pipeline=grpo", "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "env.envs_per_server=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.warmup_steps=0", "trainer.val_episodes=0",
    "trainer.val_before_train=false", "trainer.max_minutes=null", "trainer.total_steps=1", "trainer.threads_per_rank=1",
    "env.kwargs.announce=false", "env.kwargs.wording=bare",
)  # fmt: skip


def test_a_run_whose_tool_server_does_not_start_names_its_command_and_its_exception(tmp_path: Path):
    (tmp_path / "my_tools.py").write_text("import a_module_that_is_missing\n")
    tools = (
        f"env.kwargs.tools=[{{mcp: {{command: '{sys.executable}', args: ['-S', "
        f"'{tmp_path}/my_tools.py']}}}}]"
    )
    with pytest.raises(TooManyFailures) as stopped:
        run(tmp_path / "run", [*SMALL, tools])
    told = str(stopped.value)
    assert "(task 'sums-6', seed " in told
    assert (
        "4 of 4 episodes could not be simulated, and env.max_failed_share=0.05 allows fewer."
        in told
    )
    assert (
        f"The MCP server '{sys.executable} -S {tmp_path}/my_tools.py' did not start: MCPError: "
        "Connection closed." in told
    )
    assert "ModuleNotFoundError: No module named 'a_module_that_is_missing'" in told
    assert "replayable" not in told
