"""The OpenAPI document of the API, made from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import metaq
from metaq_console.api.operations import ApiOperation, ApiParameter
from metaq_console.api.schemas import Schema, schema_of
from metaq_console.errors import ErrorBody

STATUSES: Final = {
    400: "A parameter or the body has a wrong form.",
    401: "The token is missing or wrong.",
    403: "This server is read-only, or the request comes from another site.",
    404: "What the path names does not exist.",
    409: "The cluster, or the state that it is in, does not allow it; or values contradict each other.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    421: "The Host header names another server.",
    500: "An error of this server; its log says more.",
    502: "A broker cannot be reached, or refuses.",
    503: "Too many requests wait already.",
    504: "No answer in time.",
}
"""Statuses of failures, with a sentence each; all have the same body."""
_BODY_ONLY: Final = (413, 415)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """The answer to a request that failed."""

    error: ErrorBody


def document(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    """Return the document."""
    schemas: dict[str, Schema] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MetaQ for Spark: HTTP access",
            "version": metaq.__version__,
            "description": "Topics, messages, groups and queries of a cluster of MetaQ or RocketMQ. Fields may be "
            "added to answers of version 1; none is removed or changed.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _operation(operation: ApiOperation, schemas: dict[str, Schema]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text.partition(". ")[0].rstrip("."),
        "description": operation.text,
        "parameters": [_parameter(one) for one in operation.parameters],
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        schema = schema_of(operation.body, schemas)
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _parameter(parameter: ApiParameter) -> dict[str, Any]:
    schema = {"type": "array", "items": parameter.schema} if parameter.many else parameter.schema
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.text,
        "schema": schema,
    }


def _responses(operation: ApiOperation, schemas: dict[str, Schema]) -> dict[str, Any]:
    if operation.answer is None:
        success: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
    else:
        success = {"schema": schema_of(operation.answer, schemas)}
    found = {str(operation.status): {"description": "Done.", "content": {operation.media: success}}}
    failure = {"application/json": {"schema": schema_of(ErrorAnswer, schemas)}}
    for status, text in STATUSES.items():
        if operation.body is not None or status not in _BODY_ONLY:
            found[str(status)] = {"description": operation.statuses.get(status, text), "content": failure}
    return found
