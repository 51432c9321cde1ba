"""A graph of two agents, each with its own chain of GRPO's nodes."""

from pathlib import Path

import yaml

NODES = (
    ("rollout", "MODEL_INFERENCE", "ROLLOUT"),
    ("reward", "COMPUTE", "REWARD"),
    ("advantage", "COMPUTE", "ADVANTAGE"),
    ("train", "MODEL_TRAIN", "ACTOR"),
)


def two_chains(folder: Path) -> str:
    """The key of a command that selects the graph, which is written into `folder`."""
    nodes = []
    for agent in (0, 1):
        dependencies: list[str] = []
        for name, kind, role in NODES:
            node = {"node_id": f"{name}_{agent}", "node_type": kind, "node_role": role}
            nodes.append(node | {"agent_group": agent, "dependencies": dependencies})
            dependencies = [node["node_id"]]
    file = folder / "graph.yaml"
    file.write_text(yaml.safe_dump({"pipeline_id": "agents", "nodes": nodes}))
    return f"dag.workflow_file={file}"
