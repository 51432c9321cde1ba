"""`OpenEnvServer` over a local pool, in a separate thread, for clients in this process."""

import asyncio
import threading
from types import TracebackType
from typing import Any

from envs.openenv.description import describe
from siirl.env_server.openenv_server import OpenEnvServer
from siirl.env_server.pool import EnvPool

TOKEN = "a-token-of-the-tests"


class ServerThread:
    """Serves `env_name` inside of the block; the environments are in this process."""

    def __init__(
        self, env_name: str, *, sessions: int = 2, at_port: int = 0, **env_kwargs: Any
    ) -> None:
        """`at_port`: 0 chooses a free one."""
        self._at_port = at_port
        self._pool = EnvPool(env_name, env_kwargs, num_servers=sessions, envs_per_server=1)
        self.server = OpenEnvServer(self._pool, token=TOKEN, max_message_bytes=1 << 20, seed=5)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._ready = threading.Event()

    def __enter__(self) -> "ServerThread":
        self._thread.start()
        self._ready.wait()
        describe.cache_clear()  # an earlier server of this process may have had the same port
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and the environments; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.server.listening("127.0.0.1", self._at_port) as self.port:
            self.url = f"http://127.0.0.1:{self.port}"
            self._ready.set()
            await self._stop.wait()
        await self._pool.close()
