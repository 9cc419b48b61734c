"""The process that serves HTTP. It asks the broker over the wire, like any client, and runs at a lower priority: a slow
request takes nothing from puts but the processor time of its questions.

The broker owns the socket: while the process starts, or starts again after it has ended, connections wait. The process
ends when its standard input is closed, so it does not outlive a broker that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from metaq.model import Address
from metaq_broker.background import begin_work, stop_work
from metaq_broker.operate.config.http import HttpConfig

_LOG: Final = logging.getLogger(__name__)
STOP_S: Final = 5.0
"""How long a stop waits for the process, which ends requests in progress meanwhile."""
STABLE_S: Final = 60.0
"""A process that ran this long has started well: the pause before the next one is short again."""
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0
_CHOSEN_ELSEWHERE: Final = ("METAQ_CLUSTER", "METAQ_PROFILE")
"""Variables that name a cluster for commands; the broker names it itself."""


class ConsoleProcess:
    """Keeps one process running from ``start`` to ``stop``; on the event loop."""

    def __init__(self, config: HttpConfig, listener: socket.socket, broker: Address) -> None:
        """``listener`` accepts HTTP clients already; ``broker`` is where the process reaches the broker."""
        self._config, self._listener, self._broker = config, listener, broker
        self._keeping: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        address = Address(*self._listener.getsockname()[:2])
        return f"{'https' if self._config.tls_cert_file else 'http'}://{address}/"

    @property
    def pid(self) -> int | None:
        """The id of the process, while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, and start it again whenever it ends."""
        self._keeping = begin_work(self._keep(), "HTTP access")

    async def stop(self) -> None:
        """Stop the process: it finishes requests for ``STOP_S`` at most."""
        await stop_work(self._keeping)
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S_MIN
        while True:
            began_s = loop.time()
            reason = await self._run()
            if loop.time() - began_s >= STABLE_S:
                pause_s = PAUSE_S_MIN
            fields = {"reason": reason, "again_in_s": pause_s}
            _LOG.warning("the process that serves HTTP has ended", extra={"fields": fields})
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _run(self) -> str:
        """Run one process to its end; return why it ended."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[self._listener.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal is for the broker, which stops this process
                env={name: value for name, value in os.environ.items() if name not in _CHOSEN_ELSEWHERE},
            )
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        return f"exit status {await self._process.wait()}"

    def _command(self) -> list[str]:
        # -P: modules of the working folder are not imported
        return [sys.executable, "-P", "-m", "metaq_console", *self._arguments()]

    def _arguments(self) -> Iterator[str]:
        config = self._config
        yield from ("--fd", str(self._listener.fileno()), "--with-parent", "--host", config.bind_address)
        yield from ("--cluster", config.cluster or str(self._broker))
        if config.write:
            yield "--write"
        for option, value in (
            ("--token-file", config.token_file),
            ("--tls-cert", config.tls_cert_file),
            ("--tls-key", config.tls_key_file),
            ("--ca-file", config.client_ca_file),
            ("--cert-file", config.client_cert_file),
            ("--key-file", config.client_key_file),
            *(("--allow-host", name) for name in config.allowed_hosts),
            *(("--proxy", address) for address in config.proxies),
            *(("--checkpoint", folder) for folder in config.checkpoints),
        ):
            if value:
                yield from (option, value)
