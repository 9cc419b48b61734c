"""A RocketMQ cluster on this machine: name servers, brokers (masters and slaves, with accounts or without), a proxy.

    with Cluster(release("5.5.0"), folder) as cluster:
        cluster.start_name_server()
        broker = cluster.start_broker("broker-a")
        cluster.create_topic("orders", queues=8)
        ... cluster.name_servers, broker.address ...
        broker.kill()
        broker.start()

Servers use free ports and keep them over restarts. Brokers and proxies register with 127.0.0.1 and, if their version
can, listen there only. All servers end with the cluster.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from metaq.testing.ports import free_port
from peers.jvm import OPENED, SMALL, JavaServer, fresh
from peers.rocketmq.ask import Account, Answer, ask
from peers.rocketmq.jars import Release

ADMINISTRATOR: Final = Account("administrator", "administrator-secret")
"""The account that may do everything, if there are accounts."""

TOPIC_DEADLINE_S: Final = 30.0
ASK_TIMEOUT_S: Final = 2.0
GET_ROUTE, GET_CLUSTER, UPDATE_TOPIC, DELETE_TOPIC, ANYTHING, PULL = 105, 106, 17, 215, 206, 11

DISK: Final = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
)
"""Keeps a disk that others have filled from making the broker refuse or delete messages."""

BROKER_DEFAULTS: Final = {
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "600000",
    "diskMaxUsedSpaceRatio": "95",
    "enablePropertyFilter": "true",
    "waitTimeMillsInSendQueue": "20000",  # a busy machine must not look like a busy broker
    "waitTimeMillsInPullQueue": "20000",
    "osPageCacheBusyTimeOutMills": "20000",
}
"""Defaults of ``start_broker``'s settings."""

LOGGING: Final = {
    "logback_namesrv.xml": "ch.qos.logback",
    "logback_broker.xml": "ch.qos.logback",
    "logback_tools.xml": "ch.qos.logback",
    "rmq.namesrv.logback.xml": "org.apache.rocketmq.logging.ch.qos.logback",
    "rmq.broker.logback.xml": "org.apache.rocketmq.logging.ch.qos.logback",
    "rmq.proxy.logback.xml": "org.apache.rocketmq.logging.ch.qos.logback",
    "rmq.tools.logback.xml": "org.apache.rocketmq.logging.ch.qos.logback",
}
LOGBACK: Final = """\
<configuration>
  <appender name="console" class="{package}.core.ConsoleAppender">
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %-5p %t %c{{0}} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""


class Cluster:
    """All servers of one release below one folder. Start name servers first; brokers register with all of them."""

    def __init__(self, release: Release, folder: Path, jvm: Sequence[str] = SMALL) -> None:
        self.release = release
        self.folder = folder
        self.names: list[JavaServer] = []
        self.brokers: list[JavaServer] = []
        self.proxy: JavaServer | None = None
        self._jvm = jvm
        self._accounts = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in [*([self.proxy] if self.proxy else []), *reversed(self.brokers), *self.names]:
            server.kill()

    @property
    def name_servers(self) -> str:
        """The name servers' addresses with ``;`` between them, as clients take them."""
        return ";".join(each.address for each in self.names)

    @property
    def administrator(self) -> Account | None:
        """The account that may do everything; ``None`` if no accounts are needed."""
        return ADMINISTRATOR if self._accounts else None

    def start_name_server(self) -> JavaServer:
        """Add a name server and wait until it answers. Running brokers do not register there."""
        folder, port = self._home(f"namesrv-{len(self.names)}"), free_port()
        lines = {
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": folder / "kvConfig.json",
            "configStorePath": folder / "namesrv.properties",
        }
        arguments = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", _properties(folder / "namesrv.conf", lines)]
        server = self._server(folder, port, arguments, lambda: _answers(f"127.0.0.1:{port}", GET_CLUSTER))
        self.names.append(server)
        server.start()
        return server

    def start_broker(
        self,
        name: str = "broker-a",
        broker_id: int = 0,
        accounts: str | None = None,
        jvm: Sequence[str] | None = None,
        **settings: object,
    ) -> JavaServer:
        """Add a broker and wait until the name servers know it.

        Args:
            name: The broker's name, ``brokerName``; a slave has its master's.
            broker_id: 0 is the master, others are slaves.
            accounts: The lines of ``accounts:`` in ``plain_acl.yml`` (4.9.7 only); turns ``aclEnable`` on.
            jvm: Options of its Java instead of the cluster's.
            settings: More keys of ``broker.conf``, e.g. ``flushDiskType="SYNC_FLUSH"``.
        """
        folder, port = self._home(f"{name}-{broker_id}"), free_port((-2, 0, 1))
        lines: dict[str, object] = {
            **BROKER_DEFAULTS,
            "brokerName": name,
            "brokerId": broker_id,
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.name_servers,
            "storePathRootDir": folder / "store",
            "storePathCommitLog": folder / "store" / "commitlog",
        }
        if broker_id:
            lines["brokerRole"] = "SLAVE"
        if accounts is not None:
            lines["aclEnable"] = "true"
            self._accounts = True
            (folder / "conf" / "plain_acl.yml").write_text(_acl(accounts))
        file = _properties(folder / "broker.conf", lines | settings)
        arguments = [*DISK, "org.apache.rocketmq.broker.BrokerStartup", "-c", file]
        server = self._server(folder, port, arguments, lambda: self._is_known(f"127.0.0.1:{port}"), jvm)
        self.brokers.append(server)
        server.start()
        return server

    def start_proxy(self) -> JavaServer:
        """Start the proxy (5.x) and wait until its remoting port answers; ``address`` is that port's."""
        folder, port = self._home("proxy"), free_port((0, 1))
        settings = {
            "rocketMQClusterName": BROKER_DEFAULTS["brokerClusterName"],
            "namesrvAddr": self.name_servers,
            "grpcServerPort": port + 1,
            "remotingListenPort": port,
            "proxyMode": "CLUSTER",
        }
        (folder / "proxy.json").write_text(json.dumps(settings))
        options = ["-n", self.name_servers, "-pm", "CLUSTER", "-pc", str(folder / "proxy.json")]
        arguments = ["org.apache.rocketmq.proxy.ProxyStartup", *options]
        self.proxy = self._server(folder, port, arguments, lambda: _answers(f"127.0.0.1:{port}", GET_ROUTE, topic="T"))
        self.proxy.start()
        return self.proxy

    def create_topic(self, topic: str, queues: int = 8, perm: int = 6, **attributes: str) -> None:
        """Create or change a topic on every running master, and wait until the name servers have its route.

        ``attributes`` are 5.x's, e.g. ``message_type="DELAY"``.
        """
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        if attributes:
            fields["attributes"] = ",".join(f"+{key.replace('_', '.')}={value}" for key, value in attributes.items())
        masters = [each for each in self.brokers if each.running and each.folder.name.endswith("-0")]
        for broker in masters:
            ask(broker.address, UPDATE_TOPIC, fields, account=self.administrator).checked()
        names = [each.folder.name.removesuffix("-0") for each in masters]
        _wait(lambda: all(self._has_queues(each, topic, names, queues) for each in self.names if each.running), topic)

    def delete_topic(self, topic: str) -> None:
        """Delete it on every running master; the name servers keep its route until they are told."""
        for broker in self.brokers:
            if broker.running and broker.folder.name.endswith("-0"):
                ask(broker.address, DELETE_TOPIC, {"topic": topic}, account=self.administrator).checked()

    def knows(self, name_server: JavaServer) -> bool:
        """Return whether a name server lists all running brokers."""
        listed = _asked(name_server.address, GET_CLUSTER).body
        return all(f'"{each.address}"'.encode() in listed for each in self.brokers if each.running)

    def route_of(self, topic: str) -> set[str]:
        """Return the names of the brokers with a topic, according to the first name server."""
        answer = _asked(self.names[0].address, GET_ROUTE, topic=topic, acceptStandardJsonOnly="true")
        return set() if answer.code else {each["brokerName"] for each in json.loads(answer.body)["queueDatas"]}

    def gives(self, server: JavaServer, topic: str, queue: int, offset: int) -> bool:
        """Return whether a pull from a server, such as a slave, finds the message at an offset."""
        asked = {"consumerGroup": "g", "topic": topic, "queueId": queue, "queueOffset": offset, "maxMsgNums": 1}
        asked |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
        return self.ask(server, PULL, asked).code == 0

    def ask(
        self, server: JavaServer, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> Answer:
        """Send one request to a server, signed if accounts are needed."""
        return ask(server.address, code, fields, body, self.administrator)

    def _home(self, name: str) -> Path:
        """Create the server's folder with the files that RocketMQ expects in ``ROCKETMQ_HOME/conf``."""
        folder = fresh(self.folder / name)
        write_logging(folder)
        return folder

    def _server(
        self,
        folder: Path,
        port: int,
        arguments: Sequence[str],
        ready: Callable[[], bool],
        jvm: Sequence[str] | None = None,
    ) -> JavaServer:
        command = [*(self._jvm if jvm is None else jvm), *OPENED, f"-Duser.home={folder}"]
        command += [f"-Drocketmq.home.dir={folder}", "-cp", self.release.class_path, *arguments]
        return JavaServer(folder.name, folder, port, command, ready)

    def _is_known(self, address: str) -> bool:
        """Return whether the broker listens and all running name servers list its address."""
        running = [each for each in self.names if each.running]
        return _answers(address, ANYTHING) and all(
            f'"{address}"'.encode() in _asked(each.address, GET_CLUSTER).body for each in running
        )

    def _has_queues(self, server: JavaServer, topic: str, names: Sequence[str], queues: int) -> bool:
        answer = _asked(server.address, GET_ROUTE, topic=topic, acceptStandardJsonOnly="true")
        if answer.code:
            return False
        found = {each["brokerName"]: each["readQueueNums"] for each in json.loads(answer.body)["queueDatas"]}
        return all(found.get(name) == queues for name in names)


def write_logging(folder: Path) -> None:
    """Write the logging configuration that RocketMQ's programs expect in ``ROCKETMQ_HOME/conf``."""
    (folder / "conf").mkdir(exist_ok=True)
    for file, package in LOGGING.items():
        (folder / "conf" / file).write_text(LOGBACK.format(package=package))


def _asked(address: str, code: int, **fields: object) -> Answer:
    try:
        return ask(address, code, fields, timeout_s=ASK_TIMEOUT_S)
    except OSError as reason:
        return Answer(-1, str(reason), {}, b"")


def _answers(address: str, code: int, **fields: object) -> bool:
    """Return whether there is any response, even an error."""
    return _asked(address, code, **fields).code != -1


def _wait(ready: Callable[[], bool], topic: str) -> None:
    end = time.monotonic() + TOPIC_DEADLINE_S
    while not ready():
        if time.monotonic() > end:
            raise RuntimeError(f"topic {topic}: the name servers have no route with its queues")
        time.sleep(0.05)


def _properties(path: Path, lines: Mapping[str, object]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(path)


def _acl(accounts: str) -> str:
    """Return ``plain_acl.yml`` with the administrator before these accounts."""
    first = f"- accessKey: {ADMINISTRATOR.access_key}\n  secretKey: {ADMINISTRATOR.secret_key}\n  admin: true\n"
    return f"accounts:\n{first}{accounts}"
