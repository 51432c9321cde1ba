"""Addresses and tokens of HTTP servers that a configuration names.

A token comes from a file, because the run folder contains the configuration.
"""

from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_TOKEN_BYTES = 4096


def checked_url(url: object, *, key: str, token_key: str, server: str) -> str:
    """Return `url` without a trailing slash.

    Args:
        url: Address of the server.
        key: Configuration key of the address, for messages.
        token_key: Configuration key of the token file.
        server: Kind of the server, with its article.

    Raises:
        ValueError: Not an http address, or one with a password, which would be written into the run
            folder.
    """
    text = str(url).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{key}={url} must be the address of {server}: http://HOST:PORT.")
    if "@" in parts.netloc:
        raise ValueError(
            f"{key} has a user or a password, which the run folder would show: put the token into "
            f"a file and set {token_key} to the file."
        )
    return text


def is_loopback(url: str) -> bool:
    """Whether `url` is on this machine, so that no proxy is used."""
    return urlsplit(url).hostname in LOOPBACK


def read_token(file: str) -> str:
    """The first line of a token file.

    Raises:
        ValueError: No such file, or one without a token.
    """
    path = Path(file).expanduser()
    try:
        with path.open("rb") as stream:
            token = stream.read(MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"The token file {path} cannot be read: {error}.") from error
    if not token or not token.isprintable() or " " in token:
        raise ValueError(f"The token file {path} has no token: one line of visible characters.")
    return token


def authorization(token: str | None) -> dict[str, str]:
    """The header that carries a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}
