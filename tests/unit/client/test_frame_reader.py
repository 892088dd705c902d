"""Frames are found in any division of the bytes, large frames are received into their own memory, sizes are limited."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import BrokenProtocol
from tidelog.client.frame_reader import FIRST_BYTES_MAX, SHARED_BYTES, FrameReader
from tidelog.wire.primitives import Buffer

SIZES = st.one_of(st.integers(0, 40), st.integers(SHARED_BYTES - 6, SHARED_BYTES + 6), st.just(3 * SHARED_BYTES))


def sent(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def receive(reader: FrameReader, data: bytes, reads: list[int]) -> list[Buffer]:
    """Deliver `data` in reads of these sizes, again and again."""
    frames: list[Buffer] = []
    position = turn = 0
    while position < len(data):
        buffer = reader.get_buffer()
        count = min(len(buffer), reads[turn % len(reads)], len(data) - position)
        assert count > 0
        buffer[:count] = data[position : position + count]
        frames += reader.received(count)
        position += count
        turn += 1
    return frames


@given(st.lists(SIZES, max_size=8), st.lists(st.integers(1, 2 * SHARED_BYTES), min_size=1, max_size=5))
def test_frames_survive_any_division(sizes: list[int], reads: list[int]) -> None:
    frames = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    assert [bytes(frame) for frame in receive(FrameReader(1 << 20), sent(frames), reads)] == frames


def test_a_large_frame_is_a_view_of_the_memory_it_was_received_into() -> None:
    reader = FrameReader(1 << 20)
    [frame] = receive(reader, sent([b"x" * 500_000]), [100_000])
    assert isinstance(frame, memoryview)
    assert isinstance(frame.obj, bytearray)


def test_memory_is_used_again_only_when_no_view_of_it_is_left() -> None:
    reader = FrameReader(1 << 20)
    [first] = receive(reader, sent([b"1" * 200_000]), [70_000])
    assert isinstance(first, memoryview)
    records = first[10:20]
    del first
    [second] = receive(reader, sent([b"2" * 200_000]), [70_000])
    assert records == b"1" * 10
    assert isinstance(second, memoryview)
    memory = id(second.obj)
    del second
    [third] = receive(reader, sent([b"3" * 150_000]), [70_000])
    assert isinstance(third, memoryview)
    assert id(third.obj) == memory
    assert third == b"3" * 150_000


def test_memory_grows_with_the_bytes_that_arrive() -> None:
    size = 3 * FIRST_BYTES_MAX
    reader = FrameReader(size)
    data = sent([b"g" * size])
    assert receive(reader, data[:100_000], [50_000]) == []
    assert len(reader.get_buffer()) <= FIRST_BYTES_MAX, "memory for bytes that were only announced"
    [frame] = receive(reader, data[100_000:], [1 << 20])
    assert frame == data[4:]


@pytest.mark.parametrize("size", [101, 2**31 - 1, -1, int.from_bytes(b"HTTP", "big")])
def test_a_size_beyond_the_limit_is_refused_before_its_bytes_arrive(size: int) -> None:
    reader = FrameReader(100)
    with pytest.raises(BrokenProtocol, match=rf"frame of {size} bytes.*limit is 100"):
        receive(reader, size.to_bytes(4, "big", signed=True), [4])
