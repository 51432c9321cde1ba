"""Reports of other people's exceptions."""

import json
import sysconfig

import pytest

from envs.mistakes import ROOT, describe_error, is_user_frame, one_line
from envs.worker_pool import WorkerSettings


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Connection refused.", "Connection refused"),
        ("SSH-2.0\r\n\x1b[2J gone\n", "SSH-2.0 [2J gone"),
        ("", "OSError"),
        ("a" * 500, "a" * 160),
    ],
)
def test_a_message_is_one_line_of_visible_characters(message, line):
    assert one_line(OSError(message)) == line


class Unreadable(Exception):
    """Its text raises."""

    def __str__(self):
        raise RuntimeError("no text")


def described(error: BaseException) -> str:
    with pytest.raises(type(error)) as raised:
        raise error
    return describe_error(raised.value).partition(f" ({__file__}, line ")[0]


@pytest.mark.parametrize(
    ("error", "description"),
    [
        (OSError("disk full"), "OSError: disk full"),
        (SystemExit(), "SystemExit"),
        (Unreadable(), "Unreadable: <exception str() failed>"),
        (RuntimeError("y" * 5_000_000), f"RuntimeError: {'y' * 2000}…"),
        (ValueError("several\r\n  lines\n\nof it\n"), "ValueError: several lines of it"),
    ],
    ids=["plain", "empty", "unreadable", "long", "lines"],
)
def test_an_exception_of_a_user_is_described_whatever_its_text_is(error, description):
    assert described(error) == description


@pytest.mark.parametrize(
    ("folder", "is_users"),
    [
        (str(ROOT / "envs"), False),
        (str(ROOT / "pipelines"), False),
        (str(ROOT / "envs_mine"), True),
        (str(ROOT / "siirl_work"), True),
        (sysconfig.get_path("platlib"), False),
        (f"{sysconfig.get_path('purelib')}_mine", True),
        ("/home/me/tensordict_trials", True),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_a_frame_of_a_folder_with_a_like_name_is_the_users(folder: str, is_users: bool) -> None:
    assert is_user_frame(f"{folder}/dock.py") == is_users


def test_a_compiled_frame_of_a_library_is_no_users_although_its_path_is_relative() -> None:
    assert not is_user_frame("uvloop/loop.pyx")


def test_an_error_in_a_library_has_the_line_that_called_it() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    line = raised.traceback[0].lineno + 1
    assert describe_error(raised.value).endswith(f" ({__file__}, line {line})")


def test_an_error_in_a_package_of_siirl_has_the_line_that_called_it() -> None:
    with pytest.raises(ValueError) as raised:
        WorkerSettings(target="module:function", num_workers=0)
    line = raised.traceback[0].lineno + 1
    assert describe_error(raised.value).endswith(f" ({__file__}, line {line})")
