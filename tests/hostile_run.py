"""The folder of a run in which every untrusted text tries to inject markup."""

import json
from pathlib import Path

# What a browser would run if a page held it as it is; each says so in the title.
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "\"><script>document.title='owned'</script>",
    "' onmouseover='document.title=1' autofocus onfocus='document.title=`owned`' x='",
    "</title></pre></style></svg><script>document.title='owned'</script>",
    "<svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "{{ 7 * 7 }}{% raw %}<!-- <script> ]]> &lt;b&gt; $\\frac{",
    "\u2028\u202e\x00\x1b[31m\ud800 Ω 火",
)


def write_hostile_run(folder: Path, *texts: str) -> None:
    """Write the files of a run below `folder`, with each of `texts` in every field
    that holds text from outside.
    """
    write_lines(folder / "metrics.jsonl", metrics_of(texts))
    video = {"step": 1, "reward": 0.5, "seed": 1}
    hostile = ("uid", "task", "kind", "outcome", "instruction", "video")
    videos = [
        video | dict.fromkeys(hostile, text) | {"reward": text, "seed": text} for text in texts
    ]
    write_lines(folder / "videos" / "index.jsonl", videos + filmed_twice(texts))
    said = rollouts_of(texts)
    write_lines(folder / "rollouts" / "train" / "step_000001.jsonl", said)
    for step in (0, 1):
        again = [
            row | {"step": step, "kind": "val", "uid": f"val-{step:06d}-{row['uid']}"}
            for row in said
        ]
        write_lines(folder / "rollouts" / "val" / f"step_{step:06d}.jsonl", again)
    (folder / "plan.txt").write_text("\n".join(texts), errors="replace")
    (folder / "warnings.txt").write_text("\n".join(texts), errors="replace")
    (folder / "config.yaml").write_text(json.dumps({text: {text: [text]} for text in texts}))
    origin = {"groups": {text: text for text in texts}}
    origin["keys"] = {f"{text}.{text}": {"source": text, "default": text} for text in texts}
    (folder / "origin.json").write_text(json.dumps(origin))
    node = {"skipped": None, "requires": [], "provides": [], "function": "", "after": []}
    nodes = [
        node | {"id": text, "function": text, "skipped": text, "requires": [text]} for text in texts
    ]
    (folder / "graph.json").write_text(json.dumps({"graph": texts[0], "nodes": nodes}))


def metrics_of(texts: tuple[str, ...]) -> list[dict]:
    """Rows of metrics.jsonl."""
    metrics = []
    for step in (0, 1):
        for text in texts:
            row = {
                "step": step,
                "notice": text,
                "reward/mean_score": text,
                "val/all/mean_score": 0.5,
                "val/all/scored_episodes": 4.0,
            }
            row |= {
                f"val/{text}/successes": 1.0,
                f"val/{text}/episodes": 4.0,
                f"val/{text}/argmax_episodes": 0.5,
                f"time/{text}_s": 1.0,
            }
            row |= {
                f"val/{text}/argmax_successes": 0.0,
                f"val/{text}/argmax_episodes": 4.0,
                "rollout/entropy": 0.1 * step,
                text: text,
            }
            metrics.append(row)
    return metrics


def rollouts_of(texts: tuple[str, ...]) -> list[dict]:
    """Rows of a rollout file."""
    rollout = {
        "step": 1,
        "reward": 0.0,
        "env_return": 1.0,
        "success": False,
        "truncated": False,
        "policy_version": 0,
    }
    hostile = ("uid", "task", "kind", "verdict", "ground_truth")
    return [
        rollout
        | dict.fromkeys(hostile, text)
        | {
            "prompt": [{"role": "user", "content": text}],
            "turns": [{"role": text, "content": text}],
            "reward_parts": {text: 1.0, "b": 2.0},
            "group": number,
        }
        for number, text in enumerate(texts)
    ]


def filmed_twice(texts: tuple[str, ...]) -> list[dict]:
    """Videos of the same held-out episodes at two steps."""
    return [
        {"step": step, "reward": None, "seed": text, "uid": f"val-{step:06d}-{text}", "kind": "val"}
        | dict.fromkeys(("task", "instruction", "video"), text)
        | {"outcome": "fail" if step else "success"}
        for text in texts
        for step in (0, 1)
    ]


def write_lines(file: Path, rows: list[dict]) -> None:
    """One JSON object per line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
