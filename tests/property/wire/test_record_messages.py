"""Records of internal topics, which kio does not have: every value survives encoding and decoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import KIO_DATA, project, record_messages, trees, versions_of, wire_settings

from tidelog.wire.message import Message

MESSAGES = [message for message in record_messages() if message.__name__ not in KIO_DATA]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@wire_settings
@given(data=st.data())
def test_round_trip(message: type[Message], data: st.DataObject) -> None:
    tree = data.draw(trees(message))
    for version in versions_of(message):
        ours = project(message, tree, version)
        encoded = ours.encode(version)
        decoded, end = message.decode(b"???" + encoded, 3, version)
        assert end == 3 + len(encoded)
        assert decoded == ours


def test_every_kind_of_record_is_there() -> None:
    keys = {message.__name__: message.api_key for message in MESSAGES if message.__name__.endswith("Key")}
    values = {message.__name__: message.api_key for message in MESSAGES if message.__name__.endswith("Value")}
    assert len(keys) == 25
    for name, number in keys.items():
        partner = values.get(name.removesuffix("Key") + "Value")
        assert partner in (number, None)
