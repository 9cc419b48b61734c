"""From what Spark says about a failure to one sentence."""

import job_failures
import pytest
from job_failures import sentence

TRACE = """\
[STREAM_FAILED] Query [id = 4c85f481] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
{line}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Current State: ACTIVE
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("metaq.operate.mirror.targets.TooFewPartitions: topic 'orders': 3 partitions", "topic 'orders': 3 partitions"),
        ("metaq_spark.errors.DataLoss: orders/0-0: gone: really", "orders/0-0: gone: really"),
        ("metaq.errors.ConnectionFailed: broker h:1: refused SQLSTATE: 38000", "broker h:1: refused"),
        ("metaq.errors.A: first\n\nThe above exception\nmetaq_spark.sink.errors.B: second", "second"),
        (
            "pyspark.errors.SparkRuntimeException: [USER_RAISED_EXCEPTION] orders/1-2: no place SQLSTATE: P0001",
            "orders/1-2: no place",
        ),
    ],
)
def test_the_sentence_is_found(line: str, expected: str) -> None:
    assert sentence(RuntimeError(TRACE.format(line=line))) == expected


@pytest.mark.parametrize("text", ["--prefix 'a': no", "", TRACE.format(line="java.io.IOException: disk full")])
def test_what_is_not_known_is_said_in_full(text: str) -> None:
    assert sentence(ValueError(text)) == text


def test_a_format_that_is_not_found_where_spark_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: metaq. Make sure ... SQLSTATE: 42K02")
    monkeypatch.setattr(job_failures, "why_not_found", lambda: "it lacks the package")
    assert sentence(problem) == "it lacks the package"
    monkeypatch.setattr(job_failures, "why_not_found", lambda: None)
    assert sentence(problem) == str(problem)
