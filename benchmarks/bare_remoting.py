"""A RocketMQ name server and broker in one process that only answers: the ceiling of a broker in Python.

It reads each request of a client, and answers from constants: a route with one queue, a place for every send, the same
records for every pull. It stores nothing, checks nothing and measures nothing.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any, Final

from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.net.loopback import disable_pacing

CHUNK_BYTES: Final = 1 << 16
SENDS, PULL, MAX_OFFSET, MIN_OFFSET, ROUTE = (10, 310, 320), 11, 30, 31, 105
ONEWAY: Final = 2
PULLED: Final = 32
"""Messages of an answer to a pull, as many as RocketMQ's clients ask for."""

_LENGTH: Final = struct.Struct(">i")
_TAIL: Final = '"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":407}'
_DONE: Final = '{"code":0,' + _TAIL
_SENT: Final = (
    '{"code":0,"extFields":{"queueId":"0","msgId":"7F00000100002A9F%016X","queueOffset":"%d","MSG_REGION":'
    '"DefaultRegion","TRACE_ON":"true"},' + _TAIL
)
_FOUND: Final = (
    '{"code":%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"0","maxOffset":"%d"},'
) + _TAIL
_PLACE: Final = '{"code":0,"extFields":{"offset":"%d"},' + _TAIL
FOUND: Final = 0
NOT_FOUND: Final = 19


class BareServer:
    """Answers the requests of one port. Its queue seems to have ``messages`` messages (rounded up to whole answers) of
    ``body_bytes`` bytes.
    """

    def __init__(self, port: int, messages: int, body_bytes: int) -> None:
        self._messages, self._sent = -(-messages // PULLED) * PULLED, 0
        self._records = b"".join(_record(number, body_bytes) for number in range(PULLED))
        address = f"127.0.0.1:{port}"
        queue = {"brokerName": "bare", "perm": 6, "readQueueNums": 1, "topicSynFlag": 0, "writeQueueNums": 1}
        broker = {"brokerAddrs": {"0": address}, "brokerName": "bare", "cluster": "bare"}
        route = {"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queue]}
        self._route = json.dumps(route).encode()

    def answer(self, header: dict[str, Any]) -> tuple[str, bytes]:
        """Return the header and the body of a response."""
        code, opaque = header["code"], header["opaque"]
        if code in SENDS:
            self._sent += 1
            return _SENT % (self._sent, self._sent, opaque), b""
        if code == PULL:
            offset = int(header["extFields"]["queueOffset"])
            if offset < self._messages:
                return _FOUND % (FOUND, offset + PULLED, self._messages, opaque), self._records
            return _FOUND % (NOT_FOUND, offset, self._messages, opaque), b""
        if code in (MAX_OFFSET, MIN_OFFSET):
            return _PLACE % (self._messages if code == MAX_OFFSET else 0, opaque), b""
        return _DONE % opaque, self._route if code == ROUTE else b""


def _record(number: int, body_bytes: int) -> bytes:
    host = host_bytes("127.0.0.1", 10911)
    properties = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number
    return encode_record(Record("bare", 0, number, bytes(body_bytes), properties, born_host=host, store_host=host))


def answer_clients(listener: socket.socket, messages: int, body_bytes: int) -> None:
    """Answer all clients until the process is ended."""
    server = BareServer(listener.getsockname()[1], messages, body_bytes)
    clients: dict[int, tuple[socket.socket, bytearray]] = {}
    events = select.epoll()
    events.register(listener.fileno(), select.EPOLLIN)
    while True:
        for number, _ in events.poll():
            if number == listener.fileno():
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                disable_pacing(client)
                clients[client.fileno()] = client, bytearray()
                events.register(client.fileno(), select.EPOLLIN)
                continue
            client, received = clients[number]
            if not _serve(server, client, received):
                events.unregister(number)
                clients.pop(number)[0].close()


def _serve(server: BareServer, client: socket.socket, received: bytearray) -> bool:
    """Answer what has come; return whether the client is still there."""
    try:
        chunk = client.recv(CHUNK_BYTES)
        received += chunk
        _answer_all(server, client, received)
    except OSError:
        return False
    return bool(chunk)


def _answer_all(server: BareServer, client: socket.socket, received: bytearray) -> None:
    while len(received) >= 8 and len(received) >= (end := 4 + _LENGTH.unpack_from(received)[0]):
        header = json.loads(received[8 : 8 + (_LENGTH.unpack_from(received, 4)[0] & 0xFFFFFF)])
        del received[:end]
        if not header.get("flag", 0) & ONEWAY:
            text, body = server.answer(header)
            head = text.encode()
            client.sendall(struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body)
