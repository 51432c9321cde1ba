"""Sockets lie in the folder of temporary files where the system accepts their paths."""

import socket
import tempfile
from pathlib import Path

import pytest

from siirl.files.socket_paths import socket_folder

NAME = "s" * 40


@pytest.mark.parametrize("longer", [0, 1])
def test_a_folder_is_taken_up_to_the_longest_path_that_a_socket_can_have(
    longer: int,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short) / ("x" * (107 - len(NAME) - len(short) - 2 + longer))
        folder.mkdir()
        assert socket_folder(NAME, wanted=str(folder)) == ("/tmp" if longer else str(folder))
        with socket.socket(socket.AF_UNIX) as made:
            if longer:
                with pytest.raises(OSError, match="too long"):
                    made.bind(str(folder / NAME))
            else:
                made.bind(str(folder / NAME))
