"""Every request and response code, from its row: parsing, missing fields, rights, bodies, and the error's sentence."""

from __future__ import annotations

import pickle
import pkgutil
from importlib import import_module

import pytest
from examples import in_one_test

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.errors import FieldError
from metaq.protocols.remoting import bodies
from metaq.protocols.remoting.codes import ResponseCode, name_of, request_code
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers import REQUESTS, parse_request, to_request
from metaq.protocols.remoting.headers.fields import Right, fields_of

TEXTS = {"text": "some", "boolean": "true", "i32": "7", "i64": "8000000000"}
NEEDS_TOPIC = {Right.SEND, Right.READ, Right.SEND_OR_READ, Right.READ_AS_GROUP}
NEEDS_GROUP = {Right.GROUP, Right.READ_AS_GROUP}
BODIES = {
    name
    for module in pkgutil.iter_modules(bodies.__path__)
    for name in vars(import_module(f"{bodies.__name__}.{module.name}"))
}


def whole(code: int) -> RemotingCommand:
    """The request with all of its fields."""
    header = REQUESTS[code]
    short = code in header.SHORT_CODES
    ext = {each.short if short else each.name: TEXTS[each.type.name] for each in fields_of(header)}
    return RemotingCommand(code, ext)


@in_one_test("code", sorted(REQUESTS))
class TestRequests:
    def test_it_is_parsed_and_written_again(self, code: int) -> None:
        command = whole(code)
        header = parse_request(command)
        assert isinstance(header, REQUESTS[code])
        (again,) = FrameDecoder().receive(encode(to_request(header, code=code)))
        assert (again.code, again.ext) == (code, command.ext)

    def test_a_missing_field_is_named_with_the_request(self, code: int) -> None:
        header = REQUESTS[code]
        for each in fields_of(header):
            name = each.short if code in header.SHORT_CODES else each.name
            ext = {other: text for other, text in whole(code).ext.items() if other != name}
            if not each.required:
                assert getattr(header.from_ext(ext, code), each.attribute) is None
                continue
            with pytest.raises(FieldError) as refused:
                header.from_ext(ext, code)
            assert str(refused.value).startswith(f"field '{name}' of {name_of(code)} is missing; it must be ")

    def test_its_name_is_its_own(self, code: int) -> None:
        assert [each for each in REQUESTS if name_of(each).split()[0] == name_of(code).split()[0]] == [code]
        with pytest.raises(ValueError, match=f"request code {code} is "):
            request_code(code, "ANOTHER")

    def test_its_right_is_about_fields_that_it_has(self, code: int) -> None:
        header = REQUESTS[code]
        names = {each.attribute for each in fields_of(header)}
        assert header.RIGHT not in NEEDS_TOPIC or "topic" in names
        assert header.RIGHT not in NEEDS_GROUP or names & {"consumer_group", "group"}
        assert header.RIGHT is not Right.IN_BODY or header.BODY in BODIES

    def test_its_bodies_are_classes_or_words(self, code: int) -> None:
        for text in (REQUESTS[code].BODY, REQUESTS[code].ANSWER_BODY):
            name = text.partition(",")[0]
            assert name in BODIES or not name.isidentifier() or not name


@in_one_test("code", ResponseCode)
class TestResponses:
    def test_an_error_has_its_name_and_meaning(self, code: ResponseCode) -> None:
        error = RequestRefused("ns:9876", "PULL_MESSAGE", code, "")
        assert str(error) == f"server ns:9876 refused PULL_MESSAGE with {code.name} ({code.value}): {code.meaning}"
        assert str(RequestRefused("ns:9876", "a", code, "why")).endswith(f"{code.name} ({code.value}): why")

    def test_an_error_is_retried_as_the_row_says(self, code: ResponseCode) -> None:
        error = pickle.loads(pickle.dumps(RequestRefused("ns:9876", "a", code, "")))
        assert (error.retryable, error.away) == (code.is_temporary, code.is_away)
        assert code.is_temporary or not code.is_away

    def test_a_stored_message_is_not_sent_again(self, code: ResponseCode) -> None:
        assert not (code.is_stored and (code.tries_elsewhere or code.is_temporary))


def test_an_unknown_code_has_no_meaning() -> None:
    error = RequestRefused("ns:9876", "a", 4711, "")
    assert str(error) == "server ns:9876 refused a with 4711: no reason given"
    assert not error.retryable
