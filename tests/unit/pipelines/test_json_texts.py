"""The records of an endpoint's answer remain the texts that the endpoint has written."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from tidelog.pipelines.sinks.http import Paging, Request
from tidelog.pipelines.sources.http import Endpoint, HttpStreamReader, Page, Staging
from tidelog.pipelines.sources.json_texts import element_texts, parse_float

NUMBERS = '{"amount": 12345678901234567.89, "rate": 0.1234567890123456789, "id": 123456789012345678901234567890}'


def page_of(content: bytes, monkeypatch: pytest.MonkeyPatch, **paging: Any) -> Page:
    monkeypatch.setattr(Request, "send", lambda *_: content)
    names = {"records": "", "cursor": None, "cursor_field": None, "parameter": "after"} | paging
    return Endpoint(Request("http://h/x", "GET", (), 1, 1.0), Paging(**names)).page(None, 0)


def test_numbers_have_all_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    content = f"[ {NUMBERS} ,{NUMBERS}]".encode()
    page = page_of(content, monkeypatch, cursor_field="amount")
    assert page.records == [NUMBERS, NUMBERS]
    assert page.cursor == "12345678901234567.89"
    assert parse_float("1.5") == 1.5


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (' [1 , "a]", {"b": [2]},null\t]\r\n', ""),
        ("[]", ""),
        ('{"data": {"items": 7}, "data": {"x": "}", "items": [[], {}, "\\"]"], "y": 1}, "next": [5]}', "data.items"),
        ('{"a" : { "b" :\n[ 1.50 ] } }', "a.b"),
    ],
)
def test_elements_are_found(document: str, path: str) -> None:
    expected = json.loads(document)
    for name in path.split(".") if path else ():
        expected = expected[name]
    assert [json.loads(text) for text in element_texts(document, path)] == expected


def test_a_record_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps([{"a": "x\ny", "b": [1]}], indent=2).replace("\n", "\r\n").encode("utf-16")
    assert page_of(content, monkeypatch).records == ['{ "a": "x\\ny", "b": [ 1 ] }']


def test_a_lone_surrogate_can_be_encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for content in (b'["\\ud83d", 1]', b'["\xed\xa0\xbd", 1]'):
        assert page_of(content, monkeypatch).records == ['"\\ud83d"', "1"]
    assert page_of('["\U0001f600"]'.encode(), monkeypatch).records == ['"\U0001f600"']
    paging = json.dumps({"records": "", "cursor": None, "cursor_field": None, "parameter": "after"})
    request = json.dumps(vars(Request("http://h/x", "GET", (), 1, 1.0)))
    stream = HttpStreamReader({"secretRequest": request, "paging": paging, "staging": str(tmp_path), "intervalS": "0"})
    Staging(tmp_path).add(1, {"cursor": None, "known": 0, "records_before": 0, "records": ['"\ud83d"']})
    [stored] = stream.partitions({"page": 0}, {"page": 1})
    assert list(stream.read(stored)) == [('"\\ud83d"',)]
