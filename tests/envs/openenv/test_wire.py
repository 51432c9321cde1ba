"""JSON forms of infos on an OpenEnv connection."""

import numpy as np

from envs.openenv.wire import info_to_json


def test_an_array_without_numbers_stays_at_the_server() -> None:
    info = {
        "place": np.array([1.0], np.float32),
        "parts": np.array([object()], object),  # its bytes are an address in memory
        "names": np.array(["ab"]),
    }
    assert info_to_json(info) == {"place": {"dtype": "float32", "shape": [1], "base64": "AACAPw=="}}
