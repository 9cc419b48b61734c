"""The OpenAPI document: what it promises is what the server does, for right and for wrong requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from examples import LONG
from http_server import serving
from metaq_console.api.openapi import document
from metaq_console.api.table import OPERATIONS
from starlette.testclient import TestClient

from metaq.testing.broker_process import BrokerProcess

EXAMPLES = 12 if LONG else 2
"""Requests of each kind for each operation."""
PHASES = "examples,coverage,fuzzing" if LONG else "examples,fuzzing"
"""Those that cover each boundary of each parameter are a thousand."""
SEED = 20261127


def test_the_server_has_the_document(console: TestClient) -> None:
    assert console.get("/v1/openapi.json").json() == json.loads(json.dumps(document(OPERATIONS)))


def test_names_of_operations_are_unique() -> None:
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)


def test_each_field_of_an_answer_is_required_and_no_other_is_allowed() -> None:
    schemas = document(OPERATIONS)["components"]["schemas"]
    for name, schema in schemas.items():
        assert schema["additionalProperties"] is False, name
        if not name.endswith("Body"):
            assert set(schema["required"]) == set(schema["properties"]), name


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_requests_made_from_the_document_are_answered_as_it_says(metaq_broker: BrokerProcess, tmp_path: Path) -> None:
    mq = metaq_broker.client()
    mq.producer().send_many("orders", ["one tea", b"\xff\x00"])
    with mq.consumer("billing", ["orders"]) as consumer:
        consumer.fetch(timeout=5)
    with serving("--cluster", metaq_broker.cluster, "--write") as url:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json", "--no-color"),
            *("--phases", PHASES, "--max-examples", str(EXAMPLES), "--seed", str(SEED)),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
