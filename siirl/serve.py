"""`siirl serve env=…`: serves an environment over OpenEnv's protocol.

    siirl serve env=metaworld port=8000
    siirl serve env=sandbox port=8000 sessions=16 token_file=my_token

Clients are openenv-core, every trainer that uses it, and siirl's own env=openenv. Each session has
an environment in a separate process. Of the configuration, only the groups env and cluster matter.

Exit status: 1 failed, 2 refused, 130, 143 or 129 when a signal ends it.
"""

import asyncio
import os
import secrets
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envs.server_address import LOOPBACK, MAX_TOKEN_BYTES
from siirl import interrupts
from siirl.errors import ConfigError, SiirlError
from siirl.files.paths import usable_path
from siirl.interrupts import STOP, leave
from siirl.params.command_help import help_of_words
from siirl.params.command_line import note_repeated
from siirl.params.command_words import Word, refuse_missing, split_words, whole_number
from siirl.terminal import warning_lines
from siirl.terminal.exit_status import exit_status
from siirl.terminal.printable import printable

if TYPE_CHECKING:
    from envs.base import EnvSpec
    from siirl.env_server.pool import EnvPool
    from siirl.params.env_args import EnvArguments

WORDS: Mapping[str, Word] = {
    "port": Word("8000", "TCP port; 0 chooses a free one"),
    "host": Word(
        "127.0.0.1",
        "address to listen at, by default only this machine. Another address exposes the server to "
        "the network, without encryption",
    ),
    "sessions": Word("4", "number of clients at once; a further client gets an error"),
    "token_file": Word(
        "",
        "file with the token that clients must send; created if it does not exist. By default "
        "below the cache folder ($SIIRL_CACHE, or ~/.cache/siirl)",
        "FILE",
    ),
    "max_message_mib": Word("4", "largest message of a client, in MiB"),
}
"""The command's own words."""
LARGEST_PORT = 65_535
MOST_SESSIONS = 1024
LARGEST_MESSAGE_MIB = 1024
TOKEN_BYTES, SHORTEST_TOKEN = 32, 16


@dataclass(frozen=True)
class ServerSettings:
    """The command's own words, checked."""

    host: str
    port: int
    sessions: int
    token_file: Path
    max_message_mib: int

    @classmethod
    def of(cls, words: Mapping[str, str]) -> "ServerSettings":
        """Read the command's own words.

        Raises:
            ConfigError: A value out of range.
        """
        port = whole_number("port", words["port"], least=0, most=LARGEST_PORT)
        if not words["host"]:
            raise ConfigError(
                "host= names no address: take 127.0.0.1, or 0.0.0.0 for all networks."
            )
        return cls(
            host=words["host"],
            port=port,
            sessions=whole_number("sessions", words["sessions"], least=1, most=MOST_SESSIONS),
            token_file=usable_path(
                words["token_file"] or _default_token_file(port), key="token_file"
            ),
            max_message_mib=whole_number(
                "max_message_mib", words["max_message_mib"], least=1, most=LARGEST_MESSAGE_MIB
            ),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"--help", "-h"} & set(words):
        print(help_of_words(__doc__, "siirl.serve", WORDS), flush=True)
        return 0
    return exit_status(lambda: _serve(words), what="the server", failures=(SiirlError, OSError))


def _serve(words: list[str]) -> int:
    note_repeated(words)
    own, words = split_words(words, WORDS)
    if not any(word.startswith(("env=", "env.name=")) for word in words):
        refuse_missing(
            "No environment given. Set env=NAME: siirl serve env=math port=8000.", words=words
        )
    serve(ServerSettings.of(own), words)
    return 0 if STOP.number is None else 128 + STOP.number


def serve(settings: ServerSettings, overrides: Sequence[str]) -> None:
    """Answer clients until a signal requests a stop.

    Raises:
        ConfigError: The environment cannot be served, or the address is taken.
    """
    # slow on a cold disk; Ctrl-C works meanwhile
    from siirl.env_server.pool import EnvPool
    from siirl.jobs.cluster_session import session
    from siirl.params.env_spec import describe_env
    from siirl.params.parser import parse_config

    config = parse_config(overrides)
    check_address(settings.host, settings.port)
    describe_env(config)
    token = token_of(settings.token_file)
    with session(config.cluster):
        pool = EnvPool(
            config.env.name,
            config.env.constructor_kwargs(),
            num_servers=settings.sessions,
            envs_per_server=1,
            cluster=config.cluster.mode,
            deadline_s=config.env.deadline_s,
            max_replays=config.env.max_replays,
        )
        with interrupts.grace_period(config.trainer.grace_s, of="the server"):
            asyncio.run(_answer(settings, pool, config.env, token=token, seed=config.trainer.seed))


async def _answer(
    settings: ServerSettings, pool: "EnvPool", env: "EnvArguments", *, token: str, seed: int
) -> None:
    from siirl.env_server.openenv_server import OpenEnvServer

    try:
        server = OpenEnvServer(
            pool, token=token, max_message_bytes=settings.max_message_mib << 20, seed=seed
        )
    except ValueError as error:
        raise ConfigError(f"This environment cannot be served: {error}") from error
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    try:
        with STOP.waking(lambda: loop.call_soon_threadsafe(stopped.set)):
            if STOP.requested:
                return
            async with server.listening(settings.host, settings.port) as port:
                print(printable(_greeting(settings, env, pool.spec, port)), flush=True)
                await stopped.wait()
    except OSError as error:
        raise _cannot_listen(settings.host, settings.port, error) from error
    finally:
        await pool.close()


def check_address(host: str, port: int) -> None:
    """Bind the address and release it, before the environment starts, which takes long.

    Raises:
        ConfigError: It is taken, belongs to another machine, or needs privileges.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as asyncio does
                listener.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of over 63 characters
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> ConfigError:
    return ConfigError(
        f"Cannot listen at host={host} port={port} ({error}): use an address of this machine, "
        "for example host=127.0.0.1, and a free port above 1023, or port=0."
    )


def token_of(file: Path) -> str:
    """The token in `file`; creates a missing file, readable for its owner only.

    Raises:
        ConfigError: The file cannot be used, others can read it, or its token is short.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read_token(file)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{token}\n")
    except OSError as error:
        raise ConfigError(
            f"token_file={file} cannot be used: {error}. Name a file in a folder that you can "
            "write, or leave token_file out."
        ) from error
    return token


def _read_token(file: Path) -> str:
    with file.open("rb") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        token = stream.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"token_file={file} holds no token of at least {SHORTEST_TOKEN} visible characters: "
            "name another file. A missing file is created."
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"token_file={file} can be read by other users (mode {stat.S_IMODE(mode):o}): "
            f"chmod 600 {file}"
        )
    return token


def _greeting(settings: ServerSettings, env: "EnvArguments", spec: "EnvSpec", port: int) -> str:
    from siirl.jobs.served_line import client_command

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url, token_file = f"http://{host}:{port}", str(settings.token_file.absolute())
    command = client_command(env, spec, url=url, token_file=token_file, sessions=settings.sessions)
    lines = [
        f"siirl: env={spec.name} at {url}, {settings.sessions} sessions, until Ctrl-C",
        f"token  {token_file}",
        f"client {command}",
    ]
    if settings.host not in LOOPBACK:
        lines.append(
            "Warning: other machines can reach this address, and the token and all messages "
            "travel without encryption: use it only in a trusted network."
        )
    return "\n".join(lines)


def _default_token_file(port: int) -> str:
    general = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("SIIRL_CACHE") or Path(general) / "siirl")
    return str(folder / "serve" / f"{port}.token")


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    warning_lines.show()
    leave(main())


if __name__ == "__main__":
    command()
