"""Decoding arbitrary bytes gives a message or MalformedMessage, nothing else, in bounded time and memory."""

import contextlib
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import api_messages, project, record_messages, trees, versions_of, wire_settings

from tidelog.wire.message import Message
from tidelog.wire.primitives import MalformedMessage
from wire_harness import decode_request_header

MESSAGES = [*api_messages(), *record_messages()]
SECONDS_MAX = 2.0
MUTATIONS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFF]) | st.integers(0, 255),
        st.sampled_from(["set", "insert", "remove", "cut"]),
    ),
    min_size=1,
    max_size=4,
)


def decode_or_refuse(message: type[Message], data: bytes, version: int) -> None:
    """A message that decodes is one: it can be written again."""
    begun = time.perf_counter()
    try:
        decoded, end = message.decode(data, 0, version)
    except MalformedMessage:
        decoded = None
    assert time.perf_counter() - begun < SECONDS_MAX
    if decoded is not None:
        assert 0 <= end <= len(data)
        again = decoded.encode(version)
        assert message.decode(again, 0, version) == (decoded, len(again))


def mutate(data: bytes, mutations: list[tuple[float, int, str]]) -> bytes:
    changed = bytearray(data)
    for fraction, value, kind in mutations:
        position = int(fraction * (len(changed) + 1))
        if kind == "insert":
            changed.insert(position, value)
        elif kind == "cut":
            del changed[position:]
        elif position < len(changed):
            if kind == "set":
                changed[position] = value
            else:
                del changed[position]
    return bytes(changed)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@wire_settings
@given(data=st.data())
def test_changed_messages(message: type[Message], data: st.DataObject) -> None:
    tree = data.draw(trees(message))
    mutations = data.draw(MUTATIONS)
    for version in versions_of(message):
        decode_or_refuse(message, mutate(project(message, tree, version).encode(version), mutations), version)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@wire_settings
@given(garbage=st.binary(max_size=200))
def test_garbage(message: type[Message], garbage: bytes) -> None:
    for version in versions_of(message):
        decode_or_refuse(message, garbage, version)


@wire_settings
@given(garbage=st.binary(max_size=60))
def test_garbage_for_a_header(garbage: bytes) -> None:
    try:
        _, position = decode_request_header(garbage, 0)
    except MalformedMessage:
        return
    assert 10 <= position <= len(garbage)


BYTES = 2_000
BYTES_PER_BYTE_MAX = 200
"""An element may be one byte on the wire and an object in memory: that much, but not what a count claims."""


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_memory_follows_the_bytes_that_came_not_the_counts_they_state(message: type[Message]) -> None:
    fillings: list[Any] = [b"\x00", b"\x01", b"\x7f", b"\xff", b"\x02\x00", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x7f"]
    for version in versions_of(message):
        message.decoder(version)
        for filling in fillings:
            data = (filling * BYTES)[:BYTES]
            decoded = None
            tracemalloc.start()
            with contextlib.suppress(MalformedMessage):
                decoded = message.decode(data, 0, version)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            del decoded
            assert peak < BYTES * BYTES_PER_BYTE_MAX
