"""Codecs that yield within long arrays have the same results as the others, and refuse the same input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import api_messages, project, trees, versions_of, wire_settings

from tidelog.model.steps import run_all
from tidelog.wire import decoding, encoding
from tidelog.wire.message import Message
from tidelog.wire.primitives import MalformedMessage, skip_tagged_fields, skip_tagged_fields_in_steps, uvarint

MESSAGES = list(api_messages())


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short that small messages have several."""
    monkeypatch.setattr(decoding, "STEP_ITEMS", 2)
    monkeypatch.setattr(decoding, "STEP_NUMBERS", 2)
    monkeypatch.setattr(encoding, "STEP_ITEMS", 2)
    monkeypatch.setattr(encoding, "PIECE_PARTS", 3)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@wire_settings
@given(data=st.data())
def test_same_as_at_once(message: type[Message], data: st.DataObject) -> None:
    tree = data.draw(trees(message))
    version = data.draw(st.sampled_from(list(versions_of(message))))
    ours = project(message, tree, version)
    encoded = ours.encode(version)
    pieces = run_all(message.stepwise_encoder(version)(ours))
    assert isinstance(pieces[0], bytes)
    assert b"".join(pieces) == encoded
    decode = message.stepwise_decoder(version)
    assert run_all(decode(b"?" + encoded, 1)) == (ours, 1 + len(encoded))
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    try:
        expected = message.decode(cut, 0, version)
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            run_all(decode(cut, 0))
    else:
        assert run_all(decode(cut, 0)) == expected


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_unknown_tagged_fields_are_skipped_in_steps(count: int) -> None:
    fields = b"".join(uvarint(tag) + b"\x02ab" for tag in range(count))
    data = uvarint(count) + fields + b"!"
    first, start = data[0], 1
    assert run_all(skip_tagged_fields_in_steps(data, start, first)) == len(data) - 1
    assert skip_tagged_fields(data, start, first) == len(data) - 1
