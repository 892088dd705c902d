"""The journal's encoding: exact bytes for each kind of record, and refusals."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_harness.builders import topic_id
from tidelog.config.endpoints import Endpoint
from tidelog.metadata.records import (
    FORMAT_VERSION,
    RECOVERED,
    RECOVERING,
    BrokerConfigChanged,
    BrokerRegistered,
    BrokerStateChanged,
    BrokerUnregistered,
    ClientMetricsConfigChanged,
    ClientQuotaChanged,
    ClusterNamed,
    ControllerElected,
    DirectoryId,
    FeatureLevelChanged,
    GroupConfigChanged,
    JournalError,
    JournalRecord,
    LeadershipRenewed,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    PartitionStatesChanged,
    ProducerIdsAllocated,
    StateChange,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    decode,
    encode,
    new_partition,
)
from tidelog.model.ids import TopicId

ONE = "AAAAAAAAAAAAAAAAAAAAAQ"
DIRECTORY = DirectoryId(topic_id(1))

WRITTEN: list[tuple[JournalRecord, str]] = [
    (ClusterNamed("c"), '{"kind":"cluster","cluster_id":"c"}'),
    (ControllerElected(1, 7), '{"kind":"controller","broker_id":1,"epoch":7}'),
    (
        BrokerRegistered(1, 5, "run", (Endpoint("PLAINTEXT", "h", 9092),), "rack"),
        '{"kind":"broker","broker_id":1,"epoch":5,"incarnation":"run",'
        '"endpoints":[["PLAINTEXT","h",9092,"PLAINTEXT"]],"rack":"rack"}',
    ),
    (LeadershipRenewed(1), '{"kind":"leadership","broker_id":1}'),
    (
        TopicCreated("t", topic_id(1), (new_partition((1,)), new_partition((2, 1), 4)), {"retention.ms": "5"}),
        f'{{"kind":"topic","name":"t","topic_id":"{ONE}","partitions":[[1,[1]],[1,[2,1],4]],"config":{{"retention.ms":"5"}}}}',
    ),
    (
        TopicCreated(
            "t", topic_id(1), (PartitionState(1, 4, (1, 2), (1, 2), 3), PartitionState(2, 4, (1, 2), (2,), 3))
        ),
        f'{{"kind":"topic","name":"t","topic_id":"{ONE}","partitions":[[1,[1,2],4,3],[1,[1,2],4,3,2,[2]]]}}',
    ),
    (
        PartitionsAdded(topic_id(1), 1, ((1,), (2, 1))),
        f'{{"kind":"partitions","topic_id":"{ONE}","first":1,"replicas":[[1],[2,1]]}}',
    ),
    (
        PartitionChanged(topic_id(1), 3, leader=-1, isr=(1,)),
        f'{{"kind":"partition","topic_id":"{ONE}","partition":3,"leader":-1,"isr":[1]}}',
    ),
    (
        PartitionChanged(topic_id(1), 3, replicas=(1, 2)),
        f'{{"kind":"partition","topic_id":"{ONE}","partition":3,"replicas":[1,2]}}',
    ),
    (TopicDeleted(topic_id(1)), f'{{"kind":"topic-deleted","topic_id":"{ONE}"}}'),
    (
        TopicConfigChanged(topic_id(1), "retention.ms", None),
        f'{{"kind":"topic-config","topic_id":"{ONE}","setting":"retention.ms","value":null}}',
    ),
    (
        BrokerConfigChanged("", "log.retention.ms", "5"),
        '{"kind":"broker-config","broker":"","setting":"log.retention.ms","value":"5"}',
    ),
    (
        GroupConfigChanged("g", "consumer.session.timeout.ms", "50000"),
        '{"kind":"group-config","group":"g","setting":"consumer.session.timeout.ms","value":"50000"}',
    ),
    (
        ClientQuotaChanged((("client-id", None), ("user", "u")), "producer_byte_rate", 1024.0),
        '{"kind":"client-quota","entity":[["client-id",null],["user","u"]],"key":"producer_byte_rate","value":1024.0}',
    ),
    (
        ClientMetricsConfigChanged("m", "interval.ms", "1000"),
        '{"kind":"client-metrics-config","subscription":"m","setting":"interval.ms","value":"1000"}',
    ),
    (ProducerIdsAllocated(1, 2000), '{"kind":"producer-ids","broker_id":1,"next_id":2000}'),
    (
        BrokerRegistered(
            1, 5, "run", (Endpoint("P", "h", 1),), None, True, True, "boot", (DIRECTORY,), {"group.version": (0, 1)},
            3, True,
        ),
        '{"kind":"broker","broker_id":1,"epoch":5,"incarnation":"run","endpoints":[["P","h",1,"PLAINTEXT"]],"rack":null,'
        f'"fenced":true,"in_controlled_shutdown":true,"boot_id":"boot","directories":["{ONE}"],'
        '"features":{"group.version":[0,1]},"records_epoch":3,"records_synced":true}',
    ),
    (
        TopicCreated(
            "t", topic_id(1),
            (
                PartitionState(-1, 4, (1, 2), (), 3, (2,), (1,)),
                PartitionState(1, 0, (1, 2), (1,), 0, (), (), (2,), (1,), RECOVERING, (DIRECTORY, DIRECTORY)),
            ),
        ),
        f'{{"kind":"topic","name":"t","topic_id":"{ONE}","partitions":[[1,[1,2],4,3,-1,[],[2],[1]],'
        f'[1,[1,2],0,0,1,[1],[],[],[2],[1],1,["{ONE}","{ONE}"]]]}}',
    ),
    (
        PartitionsAdded(topic_id(1), 1, ((1, 2),), ((2,),)),
        f'{{"kind":"partitions","topic_id":"{ONE}","first":1,"replicas":[[1,2]],"isrs":[[2]]}}',
    ),
    (FeatureLevelChanged("group.version", 1), '{"kind":"feature-level","feature":"group.version","level":1}'),
    (BrokerStateChanged(1, 5, fenced=False), '{"kind":"broker-state","broker_id":1,"epoch":5,"fenced":false}'),
    (BrokerUnregistered(1, 5), '{"kind":"broker-unregistered","broker_id":1,"epoch":5}'),
    (
        PartitionStatesChanged(
            (
                StateChange({topic_id(1): (0, 2)}, -1, (), (1, 2), (2,), (1,), (2,), (1,), RECOVERING, (DIRECTORY,)),
                StateChange({topic_id(1): (1,)}, isr=(1,)),
            )
        ),
        f'{{"kind":"partition-states","changes":[{{"partitions":{{"{ONE}":[0,2]}},"leader":-1,"isr":[],'
        f'"replicas":[1,2],"elr":[2],"last_known_elr":[1],"adding":[2],"removing":[1],"recovery":1,'
        f'"directories":["{ONE}"]}},{{"partitions":{{"{ONE}":[1]}},"isr":[1]}}]}}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "text"), WRITTEN, ids=lambda value: type(value).__name__)
def test_each_kind_has_its_form(record: JournalRecord, text: str) -> None:
    """A change here is a change of the format on disk: older journals must stay readable."""
    data = encode(3, [record])
    assert data.decode() == f'{{"v":1,"epoch":3,"records":[{text}]}}'
    assert decode(data, 0) == (3, [record])


def test_every_kind_is_tested() -> None:
    assert {type(record) for record, _ in WRITTEN} == set(JournalRecord.__args__)


def test_an_entry_is_one_line_of_many_records() -> None:
    records = [record for record, _ in WRITTEN]
    data = encode(9, records)
    assert b"\n" not in data
    assert decode(data, 0) == (9, records)


def test_many_partitions_are_written_compactly() -> None:
    created = TopicCreated("t", topic_id(1), tuple(new_partition((1,)) for _ in range(10_000)))
    data = encode(1, [created])
    assert data.endswith(b'"partitions":[[10000,[1]]]}]}')
    assert decode(data, 0).records == [created]


def test_unknown_fields_are_left_out() -> None:
    data = json.dumps({"v": 1, "epoch": 1, "later": 5, "records": [{"kind": "cluster", "cluster_id": "c", "new": 1}]})
    assert decode(data.encode(), 0).records == [ClusterNamed("c")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (f'{{"v":{FORMAT_VERSION + 1},"epoch":1,"records":[]}}', "entry 7 has version 2, which is unknown here"),
        ('{"v":1,"epoch":1,"records":[{"kind":"later"}]}', "entry 7 has a 'later' record, which is unknown here"),
        ("", "metadata entry 7 is damaged"),
        ("\x00\x01", "metadata entry 7 is damaged"),
        ("[]", "metadata entry 7 is damaged"),
        ("{}", "metadata entry 7 is damaged"),
        ('{"v":1,"epoch":1,"records":[{}]}', "metadata entry 7 is damaged"),
        ('{"v":1,"epoch":1,"records":[{"kind":"cluster"}]}', "metadata entry 7 is damaged"),
        ('{"v":1,"epoch":1,"records":[{"kind":"topic-deleted","topic_id":"x"}]}', "metadata entry 7 is damaged"),
        (
            f'{{"v":1,"epoch":1,"records":[{{"kind":"topic","name":"t","topic_id":"{ONE}","partitions":[5]}}]}}',
            "metadata entry 7 is damaged",
        ),
        (
            f'{{"v":1,"epoch":1,"records":[{{"kind":"topic","name":"t","topic_id":"{ONE}","partitions":[[1,[]]]}}]}}',
            "metadata entry 7 is damaged",
        ),
        (
            f'{{"v":1,"epoch":1,"records":[{{"kind":"topic","name":"t","topic_id":"{ONE}",'
            '"partitions":[[1,[1],0,0,1,[1],[],[],[],[],0,[],5]]}]}',
            "the state of a partition has 12 fields; this version knows 11",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(data: str, message: str) -> None:
    with pytest.raises(JournalError) as caught:
        decode(data.encode(), 7)
    assert message in str(caught.value)


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(JournalError):
        decode(data, 0)


BROKERS = st.integers(0, 9)
REPLICAS = st.lists(BROKERS, min_size=1, max_size=3, unique=True).map(tuple)
STATES = st.builds(
    PartitionState,
    leader=st.integers(-1, 9),
    leader_epoch=st.integers(0, 3),
    replicas=REPLICAS,
    isr=REPLICAS | st.just(()),
    partition_epoch=st.integers(0, 3),
    elr=REPLICAS | st.just(()),
    last_known_elr=REPLICAS | st.just(()),
    adding=REPLICAS | st.just(()),
    removing=REPLICAS | st.just(()),
    recovery=st.sampled_from([RECOVERED, RECOVERING]),
    directories=st.lists(st.binary(min_size=16, max_size=16).map(DirectoryId), max_size=2).map(tuple),
)


@given(
    st.lists(STATES, max_size=5).map(tuple),
    st.dictionaries(st.text(), st.text(), max_size=3),
    st.binary(min_size=16, max_size=16),
)
def test_topics_of_any_state_come_back(states: tuple[PartitionState, ...], config: dict[str, str], raw: bytes) -> None:
    created = TopicCreated("t", TopicId(raw), states, config)
    assert decode(encode(1, [created]), 0).records == [created]
