"""Places on the Hugging Face Hub: `hf://owner/name[@revision][/path]`, and ids `owner/name`.

    hf://Qwen/Qwen3-0.6B                            a model; Qwen/Qwen3-0.6B is the same
    hf://my/models@v2/run_3                         a folder in a repository, at the tag v2
    hf://datasets/openai/gsm8k/main                 a folder of a data set
    hf://datasets/openai/gsm8k@refs/convert/parquet/main

`datasets/` may be left out where a key names data. The syntax is that of huggingface_hub's
HfFileSystem. Left out: asking the Hub (siirl.files.hub_files).
"""

import re
from dataclasses import dataclass

from siirl.errors import ConfigError

SCHEME = "hf://"
MODEL, DATASET = "model", "dataset"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_PLACE = re.compile(
    rf"(?P<data>datasets/)?(?P<repository>{_NAME}/{_NAME})"
    rf"(?:@(?P<revision>refs/(?:pr/\d+|convert/{_NAME})|[^/@]+))?(?:/(?P<path>.*))?"
)
_ID = re.compile(rf"{_NAME}/{_NAME}")


@dataclass(frozen=True)
class HubPlace:
    """A repository of the Hub, or a file or folder in it."""

    kind: str
    """`model` or `dataset`."""
    repository: str
    """`owner/name`."""
    revision: str | None = None
    """A branch, a tag or a commit; None: the main branch."""
    path: str = ""
    """File or folder within the repository; empty: all of it."""

    def __str__(self) -> str:
        """The place in its written form."""
        data = "datasets/" if self.kind == DATASET else ""
        revision = f"@{self.revision}" if self.revision else ""
        path = f"/{self.path}" if self.path else ""
        return f"{SCHEME}{data}{self.repository}{revision}{path}"


def hub_place(text: str, *, place: str, kind: str = MODEL) -> HubPlace | None:
    """Parse `hf://...`; None for a text without this scheme.

    Args:
        text: Value of a configuration key or a flag.
        place: The key, for messages.
        kind: Kind of repository if the text has no `datasets/`.

    Raises:
        ConfigError: The scheme is not followed by a valid location.
    """
    if not text.startswith(SCHEME):
        return None
    found = _PLACE.fullmatch(text.removeprefix(SCHEME).rstrip("/"))
    path = "" if found is None else found["path"] or ""
    if found is None or ".." in path.split("/"):
        raise ConfigError(
            f"{place}={text} is not a location on the Hub: write hf://owner/name, optionally "
            "followed by @revision and /path."
        )
    return HubPlace(
        kind=DATASET if found["data"] else kind,
        repository=found["repository"],
        revision=found["revision"],
        path=path,
    )


def is_hub_id(text: str) -> bool:
    """Whether a text has the form `owner/name`; a relative path may have it too."""
    return _ID.fullmatch(text) is not None and not is_only_path(text)


def is_only_path(text: str) -> bool:
    """Whether a text can only be a path and not a Hub id, `name` or `owner/name`."""
    return (
        text.startswith((".", "/", "~", "assets/")) or text.count("/") > 1 or text.endswith(".pt")
    )
