"""The streaming reader, called as Spark calls it, against brokers in memory."""

import json
import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from pyspark_tidelog.errors import DataLoss
from pyspark_tidelog.lookup import Lookup
from pyspark_tidelog.offsets import Offsets
from pyspark_tidelog.options import read_options
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.stream_reader import TidelogStreamReader
from tidelog.client.cluster import PartitionLeader, Topic
from tidelog.client.operations import EARLIEST, LATEST, ListedOffset
from tidelog.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from tidelog.wire.errors import UnknownTopicOrPartition

ALL = ReadAllAvailable()


class Brokers:
    """`log[topic][partition]` is a pair: log start offset, end offset."""

    def __init__(self, **log: list[tuple[int, int]]) -> None:
        self.log = log
        self.ids: dict[str, TopicId] = {}
        self.stale: dict[str, int] = {}
        """How many partitions of a topic the next lists of topics have. A request that names a topic is sent to a
        broker that knows more."""
        self.also_stale_by_name = False

    def topics(self, names: list[str]) -> dict[str, Topic]:
        if missing := [name for name in names if name not in self.log]:
            raise UnknownTopicOrPartition(str(missing))
        return {name: self._topic(name, self.also_stale_by_name) for name in names}

    def all_topics(self) -> dict[str, Topic]:
        return {name: self._topic(name, True) for name in self.log if self.stale.get(name) != 0}

    def _topic(self, name: str, is_stale: bool) -> Topic:
        count = len(self.log[name])
        numbers = range(min(count, self.stale.get(name, count)) if is_stale else count)
        return Topic(name, self.ids.get(name, NO_TOPIC_ID), False, {n: PartitionLeader(1, 0) for n in numbers})

    def list_offsets(self, timestamps: Offsets, isolation: int) -> dict[TopicPartition, ListedOffset]:
        found = {}
        for tp, timestamp in timestamps.items():
            if tp.partition >= len(self.log.get(tp.topic, [])):
                raise UnknownTopicOrPartition(str(tp))
            start, end = self.log[tp.topic][tp.partition]
            found[tp] = ListedOffset({EARLIEST: start, LATEST: end}[timestamp], -1)
        return found


class Query:
    """A streaming query's conversation with its source, and what of it is in the checkpoint."""

    def __init__(self, brokers: Brokers, **options: str) -> None:
        self.brokers = brokers
        self.options = options
        self.log: list[str] = []
        self.restart()

    def restart(self) -> None:
        """A new driver: a new reader, which knows nothing of the old one."""
        given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"} | self.options
        if {"subscribePattern", "assign"} & set(given):
            del given["subscribe"]
        self.reader = TidelogStreamReader(read_options(given, streaming=True), ("value",))
        self.reader._connected_lookup = Lookup(self.brokers, self.reader._options.subscription, 0)

    def start(self, batch: int) -> dict[str, Any]:
        text = self.log[batch - 1] if batch else json.dumps(self.reader.initialOffset())
        start: dict[str, Any] = json.loads(text)
        return start

    def trigger(self, limit: ReadLimit | None = None) -> list[OffsetRange] | None:
        """Plan the next micro-batch, or None when the source has nothing for it."""
        number = len(self.log)
        start = self.start(number)
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        if number and json.dumps(end) == self.log[-1]:
            return None
        self.log.append(json.dumps(end))
        return self.plan(number)

    def plan(self, batch: int) -> list[OffsetRange]:
        partitions = self.reader.partitions(self.start(batch), json.loads(self.log[batch]))
        return [each for partition in partitions for each in pickle.loads(pickle.dumps(partition)).value]


def test_latest_is_fixed_by_the_first_micro_batch_whatever_is_written_before_a_replay() -> None:
    brokers = Brokers(t=[(0, 100)])
    query = Query(brokers)
    assert query.trigger() == []
    brokers.log["t"] = [(0, 150)]
    query.restart()
    assert query.plan(0) == []
    assert query.trigger() == [OffsetRange("t", 0, 100, 150)]
    brokers.log["t"] = [(0, 180)]
    query.restart()
    assert query.plan(1) == [OffsetRange("t", 0, 100, 150)]
    assert query.trigger() == [OffsetRange("t", 0, 150, 180)]
    assert query.trigger() is None


def test_the_first_micro_batch_replays_the_same_offsets() -> None:
    brokers = Brokers(t=[(0, 100), (5, 7)])
    query = Query(brokers, startingOffsets="earliest")
    first = query.trigger()
    assert first == [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 5, 7)]
    brokers.log["t"] = [(0, 500), (5, 9)]
    query.restart()
    assert query.plan(0) == first


def test_the_offset_is_that_of_sparks_kafka_source() -> None:
    query = Query(Brokers(t=[(0, 5), (0, 6)]), startingOffsets="earliest")
    query.trigger()
    query.brokers.log["t"] = [(0, 7), (0, 6)]
    query.trigger()
    assert json.loads(query.log[0]) == {"t": {"0": 5, "1": 6}, "@begun": {"t": {"0": 0, "1": 0}}}
    assert json.loads(query.log[1]) == {"t": {"0": 7, "1": 6}}


def test_a_checkpoint_of_sparks_kafka_source_is_continued() -> None:
    """With a partition that was new to its last micro-batch, which begins at its beginning."""
    query = Query(Brokers(t=[(0, 50), (3, 9)]))
    query.log = ['{"t":{"0":10}}', '{"t":{"0":20,"1":5}}']
    assert query.plan(1) == [OffsetRange("t", 0, 10, 20), OffsetRange("t", 1, 3, 5)]
    assert query.trigger() == [OffsetRange("t", 0, 20, 50), OffsetRange("t", 1, 5, 9)]


def test_partitions_and_topics_that_are_added_are_read_from_their_beginning() -> None:
    brokers = Brokers(t1=[(0, 10)])
    query = Query(brokers, subscribePattern="t.*")
    assert query.trigger() == []
    brokers.log |= {"t1": [(0, 10), (2, 4)], "t2": [(0, 3)], "elsewhere": [(0, 9)]}
    query.restart()
    added = query.trigger()
    assert added == [OffsetRange("t1", 1, 2, 4), OffsetRange("t2", 0, 0, 3)]
    brokers.log["t1"] = [(0, 10), (2, 8)]
    query.restart()
    assert query.plan(1) == added
    assert query.trigger() == [OffsetRange("t1", 1, 4, 8)]


def test_a_pattern_that_meets_no_topic_yet_begins_at_the_beginning_of_what_comes() -> None:
    brokers = Brokers()
    query = Query(brokers, subscribePattern="t.*")
    assert query.trigger() == []
    assert query.trigger() is None
    brokers.log["t1"] = [(0, 3)]
    query.restart()
    assert query.trigger() == [OffsetRange("t1", 0, 0, 3)]


def test_max_offsets_per_trigger() -> None:
    query = Query(Brokers(t=[(0, 900), (0, 100)]), startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(100)
    assert query.trigger() == [OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 10)]
    assert query.trigger(ReadMaxRows(9)) == [OffsetRange("t", 0, 90, 98), OffsetRange("t", 1, 10, 11)]
    assert query.trigger(ALL) == [OffsetRange("t", 0, 98, 900), OffsetRange("t", 1, 11, 100)]


def test_min_offsets_per_trigger_waits_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pyspark_tidelog.stream_reader.time.monotonic", lambda: now)
    brokers = Brokers(t=[(0, 5)])
    query = Query(brokers, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert query.trigger() == [OffsetRange("t", 0, 0, 5)]
    brokers.log["t"] = [(0, 14)]
    assert query.trigger() is None
    brokers.log["t"] = [(0, 15)]
    assert query.trigger() == [OffsetRange("t", 0, 5, 15)]
    brokers.log["t"] = [(0, 16)]
    assert query.trigger() is None
    now += 61
    assert query.trigger() == [OffsetRange("t", 0, 15, 16)]


def test_min_and_max_together() -> None:
    brokers = Brokers(t=[(0, 100)])
    options = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "20", "startingOffsets": "earliest"}
    query = Query(brokers, **options)
    assert query.trigger() == [OffsetRange("t", 0, 0, 20)]
    query.trigger(ALL)
    brokers.log["t"] = [(0, 105)]
    assert query.trigger() is None
    brokers.log["t"] = [(0, 200)]
    assert query.trigger() == [OffsetRange("t", 0, 100, 120)]


def test_available_now_stops_at_what_was_there() -> None:
    brokers = Brokers(t=[(0, 250)])
    query = Query(brokers, startingOffsets="earliest", maxOffsetsPerTrigger="100", minOffsetsPerTrigger="60")
    query.reader.prepareForTriggerAvailableNow()
    brokers.log["t"] = [(0, 1000), (0, 1000)]
    planned = [query.trigger() for _ in range(4)]
    assert planned[:3] == [[OffsetRange("t", 0, at, min(at + 100, 250))] for at in (0, 100, 200)]
    assert planned[3] is None


def test_available_now_from_latest_reads_nothing_and_loses_nothing() -> None:
    brokers = Brokers(t=[(0, 10)])
    query = Query(brokers)
    query.reader.prepareForTriggerAvailableNow()
    brokers.log["t"] = [(0, 12)]
    assert query.trigger() == []
    assert query.trigger() is None
    query.restart()
    assert query.trigger() == [OffsetRange("t", 0, 10, 12)]


def test_a_start_beyond_the_end_is_a_loss() -> None:
    for available_now in (False, True):
        query = Query(Brokers(t=[(0, 10)]), startingOffsets='{"t":{"0":12}}')
        if available_now:
            query.reader.prepareForTriggerAvailableNow()
        with pytest.raises(DataLoss, match="t-0: the log ends at 10, but reading starts at 12"):
            query.trigger()


def test_losses_are_errors_that_name_them() -> None:
    brokers = Brokers(t1=[(0, 10)], t2=[(0, 10)])
    query = Query(brokers, subscribePattern="t.", startingOffsets="earliest")
    query.trigger()
    brokers.log["t1"] = [(15, 20)]
    with pytest.raises(DataLoss, match="t1-0: offsets 10 to 14 are gone, the log begins at 15"):
        query.trigger()
    brokers.log["t1"] = [(0, 3)]
    query.log = query.log[:1]
    with pytest.raises(DataLoss, match="t1-0: the log ends at 3, but reading starts at 10"):
        query.trigger()
    brokers.log["t1"] = [(0, 10)]
    del brokers.log["t2"]
    query.log = query.log[:1]
    query.restart()
    with pytest.raises(DataLoss, match="t2-0 no longer exists; it was read up to offset 10"):
        query.trigger()


def test_without_fail_on_data_loss_the_query_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers(t1=[(0, 10)], t2=[(0, 10)])
    query = Query(brokers, subscribePattern="t.", startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    brokers.log["t1"] = [(15, 20)]
    del brokers.log["t2"]
    assert query.trigger() == [OffsetRange("t1", 0, 15, 20)]
    brokers.log["t1"] = [(0, 4)]
    assert query.trigger() == []
    brokers.log["t1"] = [(0, 6)]
    assert query.trigger() == [OffsetRange("t1", 0, 4, 6)]
    assert len(caplog.records) == 3


def test_progress_tells_where_the_partitions_end() -> None:
    query = Query(Brokers(t=[(0, 50)]), startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    assert query.reader.reportLatestOffset() == {"t": {"0": 50}}
    query.reader.prepareForTriggerAvailableNow()
    assert query.reader.reportLatestOffset() == {"t": {"0": 50}}
    query.reader.commit(json.loads(query.log[0]))
    query.reader.stop()


def test_the_reader_travels_to_the_tasks() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    reader = TidelogStreamReader(read_options(given, streaming=True), ("value",))
    assert pickle.loads(pickle.dumps(reader))._options == reader._options


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize(("known", "by_name"), [(0, False), (1, False), (1, True)])
def test_a_partition_that_one_answer_lacks_keeps_its_position(
    fail: str, available_now: bool, known: int, by_name: bool
) -> None:
    """The broker that answers does not know the topic, or its second partition, yet."""
    brokers = Brokers(t1=[(0, 10)], t2=[(0, 10), (0, 20)])
    query = Query(brokers, subscribePattern="t.", startingOffsets="earliest", failOnDataLoss=fail)
    query.trigger()
    brokers.log |= {"t1": [(0, 11)], "t2": [(0, 12), (0, 23)]}
    brokers.stale, brokers.also_stale_by_name = {"t2": known}, by_name
    query.restart()
    if available_now:
        query.reader.prepareForTriggerAvailableNow()
    planned = [OffsetRange("t1", 0, 10, 11), OffsetRange("t2", 0, 10, 12), OffsetRange("t2", 1, 20, 23)]
    assert query.trigger() == planned[: 2 if by_name else 3]
    brokers.stale = {}
    query.restart()
    assert query.plan(1) == planned[: 2 if by_name else 3]
    assert query.trigger() == (planned[2:] if by_name else None)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_is_no_longer_selected_is_reported(fail: str, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(Brokers(t=[(0, 10)], u=[(0, 10)]), subscribe="t,u", startingOffsets="earliest", failOnDataLoss=fail)
    query.trigger()
    query.options["subscribe"] = "t"
    query.restart()
    if fail == "true":
        with pytest.raises(DataLoss, match="u-0 is no longer selected by the options; it was read up to offset 10"):
            query.trigger()
        assert len(query.log) == 1
    else:
        assert query.trigger() == []
        assert "u-0 is no longer selected" in caplog.text


def test_a_lost_topic_is_an_error_before_the_plan_is_stored() -> None:
    query = Query(Brokers(t1=[(0, 10)], t2=[(0, 10)]), subscribePattern="t.", startingOffsets="earliest")
    query.trigger()
    lost = query.brokers.log.pop("t2")
    query.restart()
    with pytest.raises(DataLoss, match="t2-0 no longer exists; it was read up to offset 10"):
        query.trigger()
    assert len(query.log) == 1
    query.brokers.log["t2"] = lost
    query.restart()
    assert query.trigger() is None


FIRST, SECOND = TopicId(bytes(range(16))), TopicId(bytes(range(16, 32)))
OPTIONS = [{"subscribe": "t"}, {"subscribePattern": "^t$"}, {"assign": '{"t":[0]}'}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_a_topic_that_was_created_again_is_not_continued(options: dict[str, str]) -> None:
    """Its log may be longer than the position, so only its id shows that it is another topic."""
    brokers = Brokers(t=[(0, 100)])
    brokers.ids["t"] = FIRST
    query = Query(brokers, startingOffsets="earliest", **options)
    query.trigger()
    assert json.loads(query.log[0])["@ids"] == {"t": FIRST.hex()}
    brokers.log["t"], brokers.ids["t"] = [(0, 150)], SECOND
    query.restart()
    message = r"topic t was deleted and created again, or .*read up to offset 100\).* tidelog pipeline replay NAME"
    with pytest.raises(DataLoss, match=message):
        query.trigger()
    assert len(query.log) == 1
    query.restart()
    message = r"topic t was deleted .*\(a micro-batch was planned with offsets of the old topic\)"
    with pytest.raises(DataLoss, match=message):
        query.plan(0)


def test_without_fail_on_data_loss_the_new_topic_is_read_from_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers(t=[(0, 100), (0, 5)])
    brokers.ids["t"] = FIRST
    query = Query(brokers, subscribePattern="t", startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    brokers.log["t"], brokers.ids["t"] = [(0, 150)], SECOND
    query.restart()
    assert query.trigger() == [OffsetRange("t", 0, 0, 150)]
    assert "topic t was deleted and created again" in caplog.text
    query.restart()
    assert query.plan(1) == [OffsetRange("t", 0, 0, 150)]
    assert query.trigger() is None
    brokers.log["t"] = [(0, 160)]
    assert query.trigger() == [OffsetRange("t", 0, 150, 160)]
    assert json.loads(query.log[2]) == {"t": {"0": 160}, "@ids": {"t": SECOND.hex()}}


def test_a_position_without_ids_is_continued_and_gets_ids() -> None:
    brokers = Brokers(t=[(0, 100)])
    query = Query(brokers, startingOffsets="earliest")
    query.trigger()
    brokers.ids["t"] = FIRST
    query.restart()
    assert query.trigger() is None
    brokers.log["t"] = [(0, 101)]
    query.restart()
    assert query.trigger() == [OffsetRange("t", 0, 100, 101)]
    assert json.loads(query.log[1]) == {"t": {"0": 101}, "@ids": {"t": FIRST.hex()}}
