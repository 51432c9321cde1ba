"""A client of `siirl serve` without siirl: random actions for a robot, over a WebSocket.

    siirl serve env=metaworld env.tasks=[reach] port=8000
    python openenv_client.py http://127.0.0.1:8000 ~/.cache/siirl/serve/8000.token

openenv-core's clients use the same protocol. Their address contains the token as a password:
`GenericEnvClient(base_url="http://siirl:TOKEN@127.0.0.1:8000")`.
"""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

CHUNK = 8  # actions of one message: fewer messages, and one rendered image


def array(value: dict[str, Any]) -> np.ndarray:
    """An array from its JSON form: C order, little-endian."""
    data = base64.b64decode(value["base64"])
    return np.frombuffer(data, np.dtype(value["dtype"]).newbyteorder("<")).reshape(value["shape"])


async def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    """Send a message and return the data of its answer."""
    await socket.send(json.dumps({"type": kind, "data": data}))
    answer = json.loads(await socket.recv())
    if answer["type"] == "error":
        raise RuntimeError(answer["data"]["message"])
    return answer["data"]


async def play(url: str, token: str, *, seed: int) -> tuple[float, int]:
    """One episode; returns the sum of its rewards and its number of steps."""
    random = np.random.default_rng(seed)
    address = url.replace("http", "ws", 1) + "/ws"
    header = {"Authorization": f"Bearer {token}"}
    async with connect(address, additional_headers=header, max_size=None) as socket:
        answer = await ask(socket, "reset", seed=seed)
        image = array(answer["observation"]["images"])
        print(answer["observation"]["instruction"], image.dtype, image.shape)
        score, steps = 0.0, 0
        while not answer["done"]:
            actions = random.uniform(-1, 1, size=(CHUNK, 4)).tolist()
            answer = await ask(socket, "step", actions=actions)
            score += answer["reward"]
            steps += answer["observation"]["info"]["executed"]
        return score, steps


if __name__ == "__main__":
    url, token_file = sys.argv[1:]
    token = Path(token_file).expanduser().read_text().strip()
    print(asyncio.run(play(url, token, seed=7)))
