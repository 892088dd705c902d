"""Every form of compressed records that Kafka accepts, in each part of the log that decompresses them."""

import pytest

from conformance.batches import BASE_TIMESTAMP_MS, batch
from conformance.forms import ACCEPTED, BROKEN, FORMS
from log_harness import DIRECTORY, NOW_MS, LogOnDisk
from log_harness.compaction import compact
from tidelog.log.config import LogConfig
from tidelog.log.dump import dump
from tidelog.log.reader import TimestampOffset
from tidelog.log.recompression import Recompression, recompress
from tidelog.log.times import find_timestamp
from tidelog.log.validation import check_client_batch, examine
from tidelog.log.verify import verify
from tidelog.model.steps import run_all
from tidelog.wire.batches import BatchHeader, Codec
from tidelog.wire.errors import ApiError
from tidelog.wire.records import decode_records

TAKEN_FORMS = [name for name, form in FORMS.items() if form.answer == ACCEPTED]
REFUSED_FORMS = [name for name, form in FORMS.items() if form.answer != ACCEPTED]
COUNTS = [(form, count) for form in ("gzip", "snappy-raw", "xerial", "lz4", "zstd") for count in (1, 2, 4, 5)]
COMPACTED = LogConfig(cleanup_policy="compact")
GZIP = Recompression(Codec.GZIP, None, 1 << 20)
NONE = Recompression(Codec.NONE, None, 1 << 20)


def made(form: str, count: int = 3) -> bytearray:
    return bytearray(
        batch(records=3, key="k#", value="value-#", form=form, count=count, last_offset_delta=count - 1, step_ms=1000)
    )


def answer_of_produce(data: bytearray) -> int:
    """The error code of a Produce to a compacted topic."""
    try:
        check_client_batch(memoryview(data), BatchHeader(data), COMPACTED, NOW_MS)
    except ApiError as error:
        return int(error.code)
    return 0


def answer_of_recompression(data: bytearray, wanted: Recompression) -> int:
    try:
        result = recompress(memoryview(data), BatchHeader(data), wanted)
    except ApiError as error:
        return int(error.code)
    assert [(r.key, r.value) for r in decode_records(result)] == [(b"k%d" % i, b"value-%d" % i) for i in range(3)]
    return 0


@pytest.mark.parametrize("name", FORMS)
def test_validation_and_recompression_answer_as_kafka_does(name: str) -> None:
    assert answer_of_produce(made(name)) == FORMS[name].answer
    assert answer_of_recompression(made(name), NONE) == FORMS[name].answer
    assert answer_of_recompression(made(name), GZIP) == FORMS[name].answer


@pytest.mark.parametrize(("name", "count"), COUNTS)
def test_a_count_that_is_not_the_payloads(name: str, count: int) -> None:
    assert answer_of_produce(made(name, count)) == 87
    assert answer_of_recompression(made(name, count), NONE) == 87


@pytest.mark.parametrize("name", [name for name in REFUSED_FORMS if FORMS[name].answer == BROKEN])
def test_a_refusal_says_what_is_broken(name: str) -> None:
    data = made(name)
    with pytest.raises(ApiError, match=rf"cannot be decompressed: {FORMS[name].codec} data: \S"):
        examine(memoryview(data), BatchHeader(data), COMPACTED, NOW_MS)


def log_of(*names: str, cleanup_policy: str = "delete") -> LogOnDisk:
    # Without retention by time, which would have the records of these old batches examined at their append.
    on = LogOnDisk(LogConfig(cleanup_policy=cleanup_policy, index_interval_bytes=0, retention_ms=-1))
    for name in names:
        on.append_batch(made(name))
    return on


@pytest.mark.parametrize("name", TAKEN_FORMS)
def test_look_ups_by_time_verify_and_dump_read_the_records(name: str) -> None:
    on = log_of(name)
    for offset in range(3):
        time_ms = BASE_TIMESTAMP_MS + offset * 1000
        assert run_all(find_timestamp(on.log, time_ms)) == TimestampOffset(offset, time_ms, 0)
    on.log.close(clean=True)
    result = verify(on.disk, DIRECTORY)
    assert (result.findings, result.records) == ([], 3)
    entries = list(dump(on.disk, on.path(0), records=True))
    assert [entry["kind"] for entry in entries] == ["batch", "record", "record", "record"]
    assert [entry["value"] for entry in entries[1:]] == [b"value-0", b"value-1", b"value-2"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_log_of_every_form_is_compacted(codec: str) -> None:
    names = [name for name in TAKEN_FORMS if FORMS[name].codec == codec]
    on = log_of(*names, "gzip", cleanup_policy="compact")
    on.log.roll(NOW_MS)
    on.append(b"the active segment is not compacted")
    on.flush()
    cleaned, groups = compact(on)
    assert cleaned.end_offset == 3 * len(names) + 3
    assert (sum(g.records_before for g in groups), sum(g.records_after for g in groups)) == (3 * len(names) + 3, 3)
    assert on.records()[:3] == [(3 * len(names) + i, b"value-%d" % i) for i in range(3)]


@pytest.mark.parametrize("name", [name for name in REFUSED_FORMS if FORMS[name].answer == BROKEN])
def test_verify_and_dump_name_what_kafka_cannot_read(name: str) -> None:
    on = log_of(name)
    on.log.close(clean=True)
    [finding] = verify(on.disk, DIRECTORY).findings
    assert (finding.path, finding.position) == (on.path(0), 0)
    assert f"{FORMS[name].codec} data" in finding.reason
    assert [entry["kind"] for entry in dump(on.disk, on.path(0), records=True)] == ["batch", "damage"]
