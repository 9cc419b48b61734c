"""CPU of each kind of client while the broker, name server or ZooKeeper that it needs is away.

python benchmarks/idle_clients.py [--seconds 10] [--only TEXT] [--json FILE]

Each client is a process of its own. First it sends, or reads all messages. Then the server that it needs is killed.
After a pause in which clients notice that, the CPU seconds (user and system) of each process are measured; clients that
send have a waiting message. The figure is per cent of one core. ``--runs`` and ``--scale`` change nothing. Needs Linux.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from figures import Figure, Report, arguments

from faults.remoting_fuzz.name_server import NameServerProcess
from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.errors import MetaqError
from metaq.operate.mirror.mirror import Mirror
from metaq.operate.mirror.progress import ProgressFile
from metaq.testing.broker_process import BrokerProcess as LocalBroker
from metaq.testing.ports import free_port

TOPIC: Final = "bench"
SETTLE_S = 15.0
"""How long clients have to notice that a server is down, in seconds."""
START_S: Final = 120.0
"""How long they may take to start."""
MAX: Final = 1.0
"""Limit of a client in per cent of a core."""
TICK_MS: Final = 200
SESSION_S: Final = 2.0
PAUSE_S: Final = 1.0
"""Pause of a program whose client has raised an error, in seconds."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")

# ---- the clients: each works, reports that it is ready, and continues when it is told that a server is down


def _ready() -> None:
    print("ready", flush=True)


def _wait_for_away() -> None:
    sys.stdin.readline()


def _for_ever(work: Callable[[], object]) -> None:
    """Call ``work`` repeatedly, like a program that continues after errors."""
    while True:
        with suppress(MetaqError):
            work()
        time.sleep(PAUSE_S)


def _produce(mq: Any) -> None:
    producer = mq.producer()
    producer.send(TOPIC, b"first")
    _ready()
    _wait_for_away()
    with suppress(MetaqError):
        producer.submit(TOPIC, b"waits")
    _for_ever(lambda: producer.send(TOPIC, b"again"))


def _produce_in_order(mq: MetaQ, folder: Path) -> None:
    with mq.ordered_producer({TOPIC: "0:1"}, folder / "spool") as producer:
        producer.send(TOPIC, b"first")
        _ready()
        _wait_for_away()
        producer.send(TOPIC, b"waits")
        sys.stdin.read()


def _transact(mq: MetaQ) -> None:
    producer = mq.producer()

    def once() -> None:
        with producer.transaction() as transaction:
            transaction.send(TOPIC, b"in it")

    once()
    _ready()
    _wait_for_away()
    _for_ever(once)


def _transact_rocketmq(mq: RocketMQ) -> None:
    with mq.transactional_producer("t", lambda message: "unknown") as producer:
        with producer.transaction() as transaction:
            transaction.send(TOPIC, b"first")
        _ready()
        sys.stdin.read()


def _consume(mq: Any, **options: Any) -> None:
    mq.producer().send(TOPIC, b"first")
    with mq.consumer(f"g{os.getpid()}", [TOPIC], **options) as consumer:
        for _ in consumer:
            _ready()
            break
        for _ in consumer:
            pass


def _wait_for_another(mq: MetaQ) -> None:
    """Run a consumer of a group in which another consumer of this machine has the partitions."""
    mq.producer().send(TOPIC, b"first")
    with mq.consumer("same", [TOPIC]) as first, mq.consumer("same", [TOPIC]) as second:
        first.fetch(timeout=10)
        _ready()
        while True:
            second.fetch(timeout=10)


def _ready_once() -> Callable[[], None]:
    """Return a function that reports ready at the first pause."""
    said: list[bool] = []

    def idle() -> None:
        if not said:
            said.append(True)
            _ready()

    return idle


def _follow(mq: Any) -> None:
    mq.producer().send(TOPIC, b"first")
    idle = _ready_once()

    def follow() -> None:
        for _ in mq.browse(TOPIC, start="latest").follow(idle):
            pass

    _for_ever(follow)


def _mirror(mq: Any, folder: Path) -> None:
    mq.producer().send(TOPIC, b"first")
    if isinstance(mq, RocketMQ):
        mq.topics.create(f"copy-{TOPIC}", queues=len(mq.cluster.partitions(TOPIC)))
    with ProgressFile(folder / "progress.json", "here", "here", "copy-") as progress:
        mirror = Mirror(mq, mq, [TOPIC], progress, prefix="copy-")
        mirror.copy()
        _ready()
        _for_ever(mirror.copy)


async def _produce_async(mq: Any) -> None:
    async with mq:
        producer = mq.producer()
        await producer.send(TOPIC, b"first")
        _ready()
        await asyncio.to_thread(_wait_for_away)
        while True:
            with suppress(MetaqError):
                await producer.send(TOPIC, b"again")
            await asyncio.sleep(PAUSE_S)


async def _consume_async(mq: Any, **options: Any) -> None:
    async with mq:
        await mq.producer().send(TOPIC, b"first")
        async with mq.consumer(f"g{os.getpid()}", [TOPIC], **options) as consumer:
            async for _ in consumer:
                _ready()
                break
            async for _ in consumer:
                pass


async def _transact_async(mq: AsyncRocketMQ) -> None:
    async with mq, mq.transactional_producer("t", lambda message: "unknown") as producer:
        async with producer.transaction() as transaction:
            await transaction.send(TOPIC, b"first")
        _ready()
        await asyncio.to_thread(sys.stdin.read)


class Kind(NamedTuple):
    """A client, and the server that is killed: ``broker`` of a list, ``rocketmq`` (name server and broker in one),
    ``name server`` whose broker stays up, or a broker that is ``registered at a name server``; ``zookeeper``, or a
    broker that is ``registered`` there.
    """

    needs: str
    work: Callable[[str, Path], object]


ZK: Final = {"session_s": SESSION_S}


def _run(work: Awaitable[None]) -> None:
    asyncio.run(work)  # type: ignore[arg-type]


ALL_AWAY: Final[Mapping[str, Kind]] = {
    "producer": Kind("broker", lambda at, folder: _produce(MetaQ(at))),
    "producer, asyncio": Kind("broker", lambda at, folder: _run(_produce_async(AsyncMetaQ(at)))),
    "ordered producer": Kind("broker", lambda at, folder: _produce_in_order(MetaQ(at), folder)),
    "transactions": Kind("broker", lambda at, folder: _transact(MetaQ(at))),
    "consumer": Kind("broker", lambda at, folder: _consume(MetaQ(at))),
    "consumer, asyncio": Kind("broker", lambda at, folder: _run(_consume_async(AsyncMetaQ(at)))),
    "consumer, of a group that another one has": Kind("broker", lambda at, folder: _wait_for_another(MetaQ(at))),
    "browser that follows": Kind("broker", lambda at, folder: _follow(MetaQ(at))),
    "mirror": Kind("broker", lambda at, folder: _mirror(MetaQ(at), folder)),
    "producer, ZooKeeper away": Kind("zookeeper", lambda at, folder: _produce(MetaQ(at))),
    "consumer, ZooKeeper away": Kind("zookeeper", lambda at, folder: _consume(MetaQ(at), **ZK)),
    "consumer, asyncio, ZooKeeper away": Kind(
        "zookeeper", lambda at, folder: _run(_consume_async(AsyncMetaQ(at), **ZK))
    ),
    "browser that follows, ZooKeeper away": Kind("zookeeper", lambda at, folder: _follow(MetaQ(at))),
    "consumer over ZooKeeper, broker away": Kind("registered", lambda at, folder: _consume(MetaQ(at), **ZK)),
    "RocketMQ producer": Kind("rocketmq", lambda at, folder: _produce(RocketMQ(at))),
    "RocketMQ producer, asyncio": Kind("rocketmq", lambda at, folder: _run(_produce_async(AsyncRocketMQ(at)))),
    "RocketMQ transactions": Kind("rocketmq", lambda at, folder: _transact_rocketmq(RocketMQ(at))),
    "RocketMQ transactions, asyncio": Kind("rocketmq", lambda at, folder: _run(_transact_async(AsyncRocketMQ(at)))),
    "RocketMQ consumer": Kind("rocketmq", lambda at, folder: _consume(RocketMQ(at))),
    "RocketMQ consumer, asyncio": Kind("rocketmq", lambda at, folder: _run(_consume_async(AsyncRocketMQ(at)))),
    "RocketMQ consumer, ordered": Kind("rocketmq", lambda at, folder: _consume(RocketMQ(at), ordered=True)),
    "RocketMQ browser that follows": Kind("rocketmq", lambda at, folder: _follow(RocketMQ(at))),
    "RocketMQ mirror": Kind("rocketmq", lambda at, folder: _mirror(RocketMQ(at), folder)),
}
ROCKETMQ_NEEDS: Final = {"name server": "name server away", "registered at a name server": "broker away"}
KINDS: Final[Mapping[str, Kind]] = {
    **ALL_AWAY,
    **{
        f"{name}, {words}": Kind(need, kind.work)
        for need, words in ROCKETMQ_NEEDS.items()
        for name, kind in ALL_AWAY.items()
        if kind.needs == "rocketmq"
    },
}


# ---- what they need, and what they cost


class Needed(NamedTuple):
    """An address for clients, and a function that kills the server."""

    at: str
    take_away: Callable[[], object]


@contextmanager
def places(folder: Path, needs: set[str]) -> Iterator[dict[str, Needed]]:
    """Start the servers."""
    from stage import BrokerProcess  # imports Spark, which no client needs

    from peers.zookeeper import ZooKeeperServer

    found: dict[str, Needed] = {}
    with ExitStack() as stack:
        for need in sorted(needs):
            own = folder / need
            own.mkdir()
            if need in ("broker", "rocketmq"):
                local = stack.enter_context(LocalBroker(own))
                at = str(local.address) if need == "broker" else local.name_servers
                found[need] = Needed(at, local.kill)
                continue
            if need in ROCKETMQ_NEEDS:
                name_server = NameServerProcess(own / "name-server")
                stack.callback(name_server.kill)
                at = str(name_server.start())
                section = f"[rocketmq]\nenabled=true\nport={free_port()}\nbrokerIP1=127.0.0.1\n"
                section += f"brokerName=broker-a\nnamesrvAddr={at}\n"
                registered = BrokerProcess(own / "broker", "", 0, f"[topic={TOPIC}]\n[topic=copy-{TOPIC}]\n{section}")
                stack.callback(registered.kill)
                registered.start()
                killed = name_server.kill if need == "name server" else registered.kill
                found[need] = Needed(at, killed)
                continue
            zookeeper = ZooKeeperServer(own / "zookeeper", TICK_MS)
            stack.callback(zookeeper.kill)
            zookeeper.start()
            broker = BrokerProcess(own / "broker", zookeeper.address, 0, f"[topic={TOPIC}]\n")
            stack.callback(broker.kill)
            broker.start()
            at = f"zk://{zookeeper.address}/meta"
            found[need] = Needed(at, zookeeper.kill if need == "zookeeper" else broker.kill)
        yield found


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def clients(folder: Path, at: Mapping[str, Needed], names: Sequence[str]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Run clients until the end of the block; they have worked when it begins."""
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for number, name in enumerate(names):
            own = folder / f"client-{number}"
            own.mkdir()
            command = [sys.executable, __file__, "client", name, at[KINDS[name].needs].at, str(own)]
            environment = os.environ | {"XDG_STATE_HOME": str(own)}
            with open(own / "log", "w") as log:
                running[name] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
                )
        for number, (name, client) in enumerate(running.items()):
            assert client.stdout is not None
            is_heard, _, _ = select.select([client.stdout], [], [], START_S)
            if not (is_heard and client.stdout.readline()):
                sys.exit(f"{name}: it did not work:\n{(folder / f'client-{number}' / 'log').read_text()}")
        yield running
    finally:
        for client in running.values():
            client.kill()
            client.communicate()


def measure(folder: Path, names: Sequence[str], seconds: float) -> Iterator[tuple[str, float]]:
    """Yield the per cent of a core that each client takes while its server is down."""
    with (
        places(folder, {KINDS[name].needs for name in names}) as found,
        clients(folder, found, names) as running,
    ):
        for place in found.values():
            place.take_away()
        for client in running.values():
            assert client.stdin is not None
            client.stdin.write("away\n")
            client.stdin.flush()
        time.sleep(SETTLE_S)
        before = {name: cpu_s(client.pid) for name, client in running.items()}
        began = time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        for name, client in running.items():
            if client.poll() is not None:
                sys.exit(f"{name}: it has ended")
            yield name, 100 * (cpu_s(client.pid) - before[name]) / took


def main(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if one is above its limit."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of counting")
    parser.add_argument("--only", metavar="TEXT", default="", help="only clients with TEXT in their name")
    options = parser.parse_args(given)
    names = [name for name in KINDS if options.only in name]
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder,
        Report("Clients while what they need is away", options.json) as report,
    ):
        for name, share in measure(Path(folder), names, options.seconds):
            figure = Figure(f"idle, {name}", "% CPU", share, MAX, "limit", "less", aim=1.0)
            report.add(figure)
    return int(any(figure.met is False for figure in report.figures))


def client(name: str, at: str, folder: str) -> None:
    """Run one of the clients until it is killed."""
    KINDS[name].work(at, Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(*sys.argv[2:])
    else:
        sys.exit(main())
