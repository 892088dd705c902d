"""Records as text and as JSON, in both directions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.consume import Start, escape_for_terminal, start_from
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.produce import json_parser, text_parser
from tidelog.cli.record_json import RecordJsonError, record_from_line
from tidelog.cli.records import IncomingRecord, OutgoingRecord, TemplateError, parse_template, to_json

Headers = list[tuple[str, bytes | None]]


def message(
    value: bytes | None = b"v",
    key: bytes | None = b"k",
    headers: Headers | None = None,
    timestamp_ms: int | None = 1000,
) -> IncomingRecord:
    return IncomingRecord("orders", 3, 42, timestamp_ms, key, value, headers or [])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{value}", b"v"),
        (r"{topic}-{partition}@{offset}\t{key}={value}", b"orders-3@42\tk=v"),
        ("{timestamp} {timestamp_ms}", b"1970-01-01T00:00:01.000Z 1000"),
        ("{{{key}}}", b"{k}"),
        (r"\\n\n\0\x", b"\\n\n\x00\\x"),
        ("{headers}", b"a=1,b=null"),
        ("ключ: {key}", "ключ: k".encode()),
        ("", b""),
        ("tail\\", b"tail\\"),
        ("}", b"}"),
        ("100%% {value} 5 % %", b"100% v 5 % %"),
    ],
)
def test_templates(text: str, line: bytes) -> None:
    headers: Headers = [("a", b"1"), ("b", None)]
    assert parse_template(text, b"null")(message(headers=headers)) == line


def test_nulls_and_bytes_in_templates() -> None:
    assert parse_template("{key}:{value}", b"NIL")(message(value=None, key=b"\xff\x00")) == b"\xff\x00:NIL"
    assert parse_template("[{timestamp}]", b"")(message(timestamp_ms=None)) == b"[]"


@pytest.mark.parametrize(
    ("text", "named"), [("{valeu}", "{valeu}"), ("{key", "{key"), ("{}", "{}"), ("a{ key }", "{ key }")]
)
def test_a_template_with_an_unknown_field_lists_the_fields(text: str, named: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse_template(text, b"")
    assert str(caught.value).startswith(f"'{named}' is not a field. Fields: {{topic}} {{partition}}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("%k", "'%k' is not a field; use {key}. Fields: {topic} "),
        (r"{key}\t%Y", "'%Y' is not a field. Fields: {topic} "),
    ],
)
def test_what_kcat_calls_it(text: str, told: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse_template(text, b"")
    assert str(caught.value).startswith(told)


def test_json_has_everything() -> None:
    assert json.loads(to_json(message(headers=[("h", b"1")]))) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": "1970-01-01T00:00:01.000Z",
        "timestamp_ms": 1000,
        "key": "k",
        "value": "v",
        "headers": [{"key": "h", "value": "1"}],
    }


def test_json_of_what_is_not_text() -> None:
    document = json.loads(to_json(message(value=b"\xff", key=None, timestamp_ms=None)))
    assert document["value_base64"] == "/w=="
    assert "value" not in document
    assert document["key"] is None
    assert document["timestamp"] is document["timestamp_ms"] is None


@given(
    st.none() | st.binary(),
    st.none() | st.binary(),
    st.lists(st.tuples(st.binary().map(lambda name: name.decode("utf-8", "surrogateescape")), st.none() | st.binary())),
)
def test_json_and_back(key: bytes | None, value: bytes | None, headers: Headers) -> None:
    line = to_json(message(value, key, headers))
    assert b"\n" not in line
    assert record_from_line(line) == OutgoingRecord(key, value, headers, 1000, 3)


WRITTEN = [
    "3",
    "1.50",
    "-0",
    "1e400",
    "123456789012345678901234567890",
    "7" * 10_000,
    "true",
    '{"a":[1,"é"]}',
    '{ "b" : 1 , "a":2, "a": 3.10 }',
    r'["\u00e9\ud800", "/\/"]',
    "[ ]",
]


@pytest.mark.parametrize("text", WRITTEN, ids=lambda text: text[:20])
def test_what_is_no_string_is_passed_on_as_it_is_written(text: str) -> None:
    written = text.encode()
    assert record_from_line(b'{"value":%b}' % written) == OutgoingRecord(None, written, [])
    assert record_from_line(b' {"key" :\t%b , "value":null} ' % written) == OutgoingRecord(written, None, [])
    line = b'{"headers": [ {"key":"h", "value": %b} , {"value":null,"key":"n"} ], "value":"v"}' % written
    assert record_from_line(line) == OutgoingRecord(None, b"v", [("h", written), ("n", None)])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from([None, (" , ", " : "), (",", ":")]),
    st.booleans(),
)
def test_any_json_value_as_it_is_written(value: object, separators: tuple[str, str] | None, escaped: bool) -> None:
    written = json.dumps(value, separators=separators, ensure_ascii=escaped)
    expected = value if value is None or isinstance(value, str) else written
    line = f'{{"partition": 2,"value": {written},"headers":[]}}'.encode()
    assert record_from_line(line) == OutgoingRecord(None, None if expected is None else expected.encode(), [], None, 2)


def test_json_by_hand() -> None:
    assert record_from_line(b'\xef\xbb\xbf{"value":"of Windows"}').value == b"of Windows"
    assert record_from_line(b'{"value":"v","headers":[]}') == OutgoingRecord(None, b"v", [])
    assert record_from_line(b'{"value":"v","headers":null,"partition":null}') == OutgoingRecord(None, b"v", [])


@pytest.mark.parametrize(
    "document",
    [
        3,
        [],
        {},
        {"key": "k"},
        {"value_base64": "?"},
        {"value_base64": 3},
        {"value": 1, "headers": [1]},
        {"value": 1, "headers": [{"value": "x"}]},
        {"value": 1, "headers": {"h": "x"}},
        {"value": 1, "headers": [{"key": "h", "valeu": "x"}]},
        {"value": 1, "value_base64": "eA=="},
        {"value": 1, "vaule": 2},
        {"value": 1, "partition": -1},
        {"value": 1, "partition": True},
        {"value": 1, "partition": 1 << 31},
        {"value": 1, "timestamp_ms": "now"},
        {"value": 1, "timestamp": "2026-03-01T12:00:00"},
        {"value": 1, "timestamp": 5},
        {"value": 1, "timestamp_ms": 0},
        {"value": 1, "timestamp_ms": 1 << 63},
        {"value": 1, "timestamp": "1970-01-01T00:00:00.000Z"},
        {"value": 1, "timestamp": "1969-12-31T23:59:59.999Z"},
    ],
)
def test_json_that_is_no_record(document: object) -> None:
    with pytest.raises(RecordJsonError):
        record_from_line(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"value":1,"value":2}', '"value" occurs twice'),
        (b'{"value":1,"headers":[{"key":"a","key":"b"}]}', '"key" occurs twice'),
        (b'{"value":NaN}', "JSON has no NaN"),
        (b'{"value":"\\ud800"}', '"value" has half of a surrogate pair'),
        (b'{"value":1,"headers":[{"key":"\\ud800"}]}', '"key" has half of a surrogate pair'),
        (b'{"value":"\xff"}', "byte 11 is not UTF-8"),
        (b'{"value":' + b"[" * 200_000, "nested too deeply"),
        (b'{"value":1,"timestamp_ms":%b}' % (b"9" * 10_000), '"timestamp_ms" must be a number'),
    ],
    ids=lambda value: str(value[:20]),
)
def test_lines_that_are_no_record(line: bytes, why: str) -> None:
    with pytest.raises(RecordJsonError, match=why):
        record_from_line(line)


@pytest.mark.parametrize(
    ("line", "why", "column"),
    [
        (b"", "Expecting value", 1),
        (b"{", "Expecting property name", 2),
        (b'{"value"', "Expecting ':' delimiter", 9),
        (b'{"value":', "Expecting value", 10),
        (b'{"value":1', "Expecting ',' delimiter", 11),
        (b'{"value":1,}', "Expecting property name", 12),
        (b'{"value":1} x', "Extra data", 13),
        (b'{"value":[1,]}', "", 13),
        (b'{"value":"x}', "Unterminated string", 10),
        (b'{"value":1,"headers":[', "Expecting value", 23),
        (b'{"value":1,"headers":[{}', "Expecting ',' delimiter", 25),
        (b'{"value":tru}', "Expecting value", 10),
    ],
)
def test_where_a_line_is_no_json(line: bytes, why: str, column: int) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        record_from_line(line)
    assert caught.value.msg.startswith(why)
    assert caught.value.pos + 1 == column


def test_a_timestamp_by_hand_is_in_either_form() -> None:
    assert record_from_line(b'{"value":1,"timestamp":"2026-03-01T12:00:00.250Z"}').timestamp_ms == 1772366400250
    assert record_from_line(b'{"value":1,"timestamp":"1999-01-01T00:00Z","timestamp_ms":7}').timestamp_ms == 7


# Lines to write


def test_a_line_is_a_value() -> None:
    assert text_parser(None, None, [], None)(1, b"a:b") == OutgoingRecord(None, b"a:b", [])
    assert text_parser(None, "k", [("h", "1")], None)(1, b"") == OutgoingRecord(b"k", b"", [("h", "1")])


def test_a_separator_splits_key_and_value_once() -> None:
    parse = text_parser("::", None, [], None)
    assert parse(1, b"k::v::w") == OutgoingRecord(b"k", b"v::w", [])
    assert parse(2, b"::v") == OutgoingRecord(b"", b"v", [])
    with pytest.raises(CommandError, match=r"line 3 has no separator '::' between key and value"):
        parse(3, b"k:v")
    with pytest.raises(UsageError, match="--key-separator must not be empty"):
        text_parser("", None, [], None)


def test_a_marker_stands_for_null() -> None:
    parse = text_parser(":", None, [], "NULL")
    assert parse(1, b"k:NULL") == OutgoingRecord(b"k", None, [])
    assert parse(2, b"NULL:NULL!") == OutgoingRecord(None, b"NULL!", [])


def test_json_lines() -> None:
    parse = json_parser(None, [("added", "1")], False)
    assert parse(1, b'{"key":"k","value":"v","headers":[{"key":"h","value":"x"}]}') == OutgoingRecord(
        b"k", b"v", [("h", b"x"), ("added", "1")]
    )
    assert json_parser("fixed", [], False)(1, b'{"key":"k","value":"v"}').key == b"fixed"
    with pytest.raises(CommandError) as refused:
        parse(7, b'{"value": tru}')
    assert str(refused.value) == "line 7 is not JSON: Expecting value, at column 11"
    with pytest.raises(CommandError, match="line 8 is not JSON: Unterminated string, at column 11"):
        parse(8, b'{"value": "x}')
    with pytest.raises(
        CommandError, match='line 8 is not a record: "vaule" is not a field; the fields are topic, partition'
    ):
        parse(8, b'{"value":"v","vaule":"x"}')
    assert parse(9, b'{"value":"v","partition":4}').partition is None
    keep = json_parser(None, [], True)
    assert keep(1, b'{"value":"v","partition":4}').partition == 4
    with pytest.raises(CommandError, match='line 2 has no "partition", which --keep-partitions needs'):
        keep(2, b'{"value":"v"}')


def test_what_would_steer_a_terminal_is_escaped() -> None:
    assert escape_for_terminal(b"a\tb\nc") == b"a\tb\nc"
    assert escape_for_terminal("é漢".encode()) == "é漢".encode()
    assert escape_for_terminal(b"\x1b[31m\r\x07\xff") == b"\\x1b[31m\\r\\x07\\xff"
    # A character and a byte of the same number are told apart.
    assert escape_for_terminal("\x9b".encode()) == b"\\u009b"
    assert escape_for_terminal(b"\x9b") == b"\\x9b"
    assert escape_for_terminal("é".encode(), "ascii") == b"\\u00e9"
    assert escape_for_terminal(b"\xe9", "ascii") == b"\\xe9"


@pytest.mark.parametrize(
    ("offset", "start"),
    [
        (None, Start(False, None, None)),
        ("latest", Start(False, None, None)),
        ("end", Start(False, None, None)),
        ("earliest", Start(True, None, None)),
        ("beginning", Start(True, None, None)),
        ("0", Start(False, 0, None)),
        ("-5", Start(False, -5, None)),
    ],
)
def test_where_reading_begins(offset: str | None, start: Start) -> None:
    assert start_from(False, offset, None) == start
