"""The connector over TLS: the options, and a read from a real broker that wants a certificate."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from fix_tls import Certificates, launch_with, tls_session

from metaq import MetaQ
from metaq.backends.metaq.puts import encode_block, put
from metaq.errors import TlsRefused
from metaq.model import Message, Partition, TopicPartition
from metaq.net.reach import Reach
from metaq.net.tls import TlsSettings
from metaq_spark.backends.metaq.cluster import RetryingSessions, pool_with
from metaq_spark.backends.metaq.exactly_once.branches import BranchLimits
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, commit_batch
from metaq_spark.backends.metaq.exactly_once.contents import Count
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts
from metaq_spark.backends.metaq.options import parse_sink_options, parse_source_options
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.columns.blocks import EncodedBlock, of_block
from metaq_spark.errors import OptionError
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader


def source(**options: str):
    return parse_source_options({"brokers": "127.0.0.1:8123", "subscribe": "t"} | options, Use.BATCH_READ)


def test_without_options_there_is_no_tls() -> None:
    assert source().tls is None


def test_the_files_are_taken_as_given(certificates: Certificates) -> None:
    shown = certificates.client("app")
    assert source(tlsCaFile=certificates.ca_file, tlsCertFile=str(shown.cert_file)).tls == shown
    assert source(tlscafile="system").tls == TlsSettings()
    assert source(tlsCaFile="system", tlsVerify="ca").tls == TlsSettings(check_hostname=False)
    unchecked = TlsSettings(None, str(shown.cert_file), check_hostname=False, verify=False)
    assert source(tlsVerify="none", tlsCertFile=str(shown.cert_file)).tls == unchecked
    assert parse_sink_options(
        {"brokers": "b:1", "tlsCaFile": certificates.ca_file}, Use.BATCH_WRITE
    ).tls == TlsSettings(certificates.ca_file)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tlsCertFile": "/me.pem"}, "tlsCertFile.*no effect without tlsCaFile"),
        ({"tlsCaFile": "system", "tlsKeyFile": "/me.key"}, "tlsKeyFile.*no effect without tlsCertFile"),
        ({"tlsCaFile": "/nowhere/ca.pem"}, "ca_file=/nowhere/ca.pem cannot be used: No such file"),
        ({"tlsCaFile": " "}, "tlsCaFile.*expected the path of a file"),
        ({"tlsVerify": "ca"}, "tlsVerify.*no effect without tlsCaFile"),
        ({"tlsVerify": "none", "tlsCaFile": "system"}, "tlsCaFile.*no effect with tlsVerify = none"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(options: dict[str, str], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        source(**options)
    with pytest.raises(OptionError, match=error):
        parse_sink_options({"brokers": "b:1"} | options, Use.BATCH_WRITE)


def test_pools_are_shared_by_those_with_the_same_settings(certificates: Certificates) -> None:
    given = [{}, {}, {"requestTimeoutMs": "1000"}, {"tlsVerify": "none"}]
    plain, same, hurried, secured = (pool_with(source(brokers="b:1", **options).reach) for options in given)
    assert plain is same
    assert len({plain, hurried, secured}) == 3
    assert hurried.timeouts.request_s == 1
    first, again = (pool_with(Reach(tls=TlsSettings(certificates.ca_file))) for _ in range(2))
    assert first is again
    assert first is not pool_with(Reach())


@pytest.mark.process
def test_a_read_from_a_broker_that_wants_a_certificate(tmp_path: Path, certificates: Certificates) -> None:
    broker = launch_with(tmp_path, f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n")
    shown = certificates.client("app")
    session = tls_session(broker, shown)
    for number in range(10):
        put(session, "t", 0, Message(b"%d" % number))
    session.close()
    options = source(brokers=str(broker.address), tlsCaFile=certificates.ca_file, tlsCertFile=str(shown.cert_file))
    reader = BatchReader(MetaQSource(options))
    rows = [
        value for part in reader.partitions() for batch in reader.read(part) for value in batch["value"].to_pylist()
    ]
    assert rows == [b"%d" % number for number in range(10)]
    broker.end()


@pytest.mark.process
def test_batches_are_written_exactly_once_with_a_certificate(tmp_path: Path, certificates: Certificates) -> None:
    broker = launch_with(tmp_path, f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n")
    shown = certificates.client("app")
    tls = {"tlsCaFile": certificates.ca_file, "tlsCertFile": str(shown.cert_file)}
    where, attempts = TopicPartition("t", Partition(0, 0)), itertools.count()

    def write(number: int, keys: dict[str, str]) -> None:
        given = {"brokers": str(broker.address), "topic": "t", "delivery": "exactly_once"} | keys
        sessions = RetryingSessions(parse_sink_options(given, Use.STREAM_WRITE))
        batch = BatchName("c0ffee00-0000-4000-8000-000000000001", number)
        task = TransactionalPuts(TaskAttempt(batch, 0, next(attempts)), BranchLimits(60, 15.0), sessions)
        block, count = encode_block([Message(b"%d" % number)])
        task.put(where, broker.address, EncodedBlock(block, count, of_block(block)))
        written = WrittenMessages(1, 0, batch, task.finish(), {where: Count(1, number)})
        commit_batch(TransactionPlan({0: broker.address}), [written], number, sessions)

    for number in (0, 1, 1, 2):  # a batch is repeated
        write(number, tls)
    with pytest.raises(TlsRefused):
        write(3, {"tlsCaFile": certificates.ca_file, "retries": "0"})
    with MetaQ(str(broker.address), tls=shown) as mq:
        assert [message.data for message in mq.browse("t")] == [b"0", b"1", b"2"]
    broker.end()
