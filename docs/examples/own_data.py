"""Writes the same questions as JSONL and as parquet in verl's layout, to train on.

python own_data.py my_data
siirl train pipeline=grpo env=math 'data.train_files=[my_data/train.jsonl]'
siirl train pipeline=grpo env=math 'data.train_files=[my_data/train.parquet]' \
        'data.val_files=[my_data/test.parquet]'
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from pyarrow import Table, parquet


def row(number: int) -> dict[str, Any]:
    """A question in verl's columns; the same number gives the same question."""
    draw = random.Random(number)
    left, right = draw.randrange(10, 100), draw.randrange(10, 100)
    return {
        "data_source": "my/sums",
        "prompt": [{"role": "user", "content": f"{left}+{right}="}],
        "ability": "math",
        "reward_model": {"style": "whole", "ground_truth": str(left + right)},
        "extra_info": {"number": number},
    }


def main(folder: Path, train: int = 2000, test: int = 200) -> None:
    """Write train.jsonl, train.parquet and test.parquet into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row(number) for number in range(train + test)]
    lines = (json.dumps(entry) for entry in rows[:train])
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    parquet.write_table(Table.from_pylist(rows[:train]), folder / "train.parquet")
    parquet.write_table(Table.from_pylist(rows[train:]), folder / "test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
