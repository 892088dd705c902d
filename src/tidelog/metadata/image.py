"""The immutable image of the cluster's metadata, built by replaying the journal. Images share their unchanged parts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tidelog.config.endpoints import Endpoint
from tidelog.metadata.records import (
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
    new_partitions,
)
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps, run_all
from tidelog.quotas.entities import Entity

NO_LEADER: Final = -1
METADATA_FEATURE: Final = "tidelog.metadata.version"
"""The feature whose level says which kinds of journal records all brokers can read. With level 1 they can read all
kinds. With level 0 the journal must not contain the kinds that only clusters use."""
ELR_FEATURE: Final = "eligible.leader.replicas.version"
"""Kafka's feature for eligible leader replicas (KIP-966)."""
TRANSACTION_FEATURE: Final = "transaction.version"
"""The protocol of transactions (KIP-890): with level 2, the producer's epoch is incremented when a transaction ends."""
LEVELS_WITHOUT_RECORD: Final[Mapping[str, int]] = {TRANSACTION_FEATURE: 2}
"""The level that a feature has while the journal contains no level for it. For features not listed here, it is 0."""

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
CLUSTER_METADATA = "__cluster_metadata"
"""The topic of Kafka's own metadata log. Tidelog never has a topic of this name, and does not touch the files of this
topic in an adopted Kafka directory."""
INTERNAL_TOPICS = (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE)


class TopicImage:
    """One topic. Every change of a topic creates a new object, so topic images are compared by identity."""

    __slots__ = ("config", "internal", "name", "partitions", "topic_id")

    def __init__(
        self, name: str, topic_id: TopicId, partitions: tuple[PartitionState, ...], config: Mapping[str, str]
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.config = config
        """The settings that were set for this topic, as the client wrote them."""
        self.internal = name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


class BrokerRegistration(NamedTuple):
    """The registration of one broker. `records.BrokerRegistered` explains the fields."""

    broker_id: int
    epoch: int
    incarnation: str
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool = False
    in_controlled_shutdown: bool = False
    boot_id: str = ""
    directories: tuple[DirectoryId, ...] = ()
    features: Mapping[str, tuple[int, int]] = {}
    records_epoch: int = -1
    records_synced: bool = False

    @property
    def active(self) -> bool:
        """Whether the broker may lead partitions and be in their ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str | None = None) -> Endpoint:
        """Return the address to which clients of `listener` connect, or the first address if the listener is
        unknown.
        """
        return next((e for e in self.endpoints if e.listener == listener), self.endpoints[0])

    @property
    def host(self) -> str:
        return self.endpoints[0].host

    @property
    def port(self) -> int:
        return self.endpoints[0].port


class MetadataImage:
    """The metadata after the journal's entries 0 .. position - 1. Its mappings must not be changed."""

    __slots__ = (
        "broker_configs",
        "brokers",
        "client_metrics_configs",
        "client_quotas",
        "cluster_id",
        "controller_epoch",
        "controller_id",
        "feature_levels",
        "group_configs",
        "partition_count",
        "position",
        "producer_ids_next",
        "topics",
        "topics_by_id",
    )

    def __init__(
        self,
        *,
        position: int = 0,
        cluster_id: str = "",
        controller_id: int = -1,
        controller_epoch: int = 0,
        brokers: Mapping[int, BrokerRegistration] = {},
        topics: Mapping[str, TopicImage] = {},
        topics_by_id: Mapping[TopicId, TopicImage] = {},
        broker_configs: Mapping[str, Mapping[str, str]] = {},
        group_configs: Mapping[str, Mapping[str, str]] = {},
        client_quotas: Mapping[Entity, Mapping[str, float]] = {},
        client_metrics_configs: Mapping[str, Mapping[str, str]] = {},
        producer_ids_next: int = 0,
        partition_count: int = 0,
        feature_levels: Mapping[str, int] = {},
    ) -> None:
        self.position = position
        """Position of the next entry in the journal."""
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.brokers = brokers
        """Registered brokers by id, in ascending order of the ids."""
        self.topics = topics
        self.topics_by_id = topics_by_id
        self.broker_configs = broker_configs
        """Settings that were altered at run time. The key is a broker id as text, or "" for all brokers."""
        self.group_configs = group_configs
        """Settings of groups, by group id. Settings may be stored for a group that does not exist."""
        self.client_quotas = client_quotas
        """Quotas of users, client ids and IP addresses. Entities without quotas are not listed."""
        self.client_metrics_configs = client_metrics_configs
        """Settings of client metrics subscriptions, by name (KIP-714)."""
        self.producer_ids_next = producer_ids_next
        self.partition_count = partition_count
        """Number of partitions of all topics."""
        self.feature_levels = feature_levels
        """Finalized levels of the cluster's features (KIP-584). Level 0 is listed only for the features of
        LEVELS_WITHOUT_RECORD. `feature_level` returns the level of any feature.
        """

    def is_active(self, broker_id: int) -> bool:
        """Return whether the broker is registered, not fenced and not shutting down."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active

    def is_online(self, broker_id: int) -> bool:
        """Return whether the broker is registered and not fenced. It may be shutting down."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    @property
    def metadata_level(self) -> int:
        """The level of METADATA_FEATURE. With level 1 or higher, brokers are fenced when they register, and the journal
        may contain the kinds of records that only clusters use.
        """
        return self.feature_levels.get(METADATA_FEATURE, 0)

    def feature_level(self, feature: str) -> int:
        """Return the finalized level of a feature."""
        return self.feature_levels.get(feature, LEVELS_WITHOUT_RECORD.get(feature, 0))

    def reported_controller(self, node_id: int) -> int:
        """Return the broker to which clients should send requests for the controller; -1 if all brokers are fenced.

        Each broker forwards such requests to the controller. So the result is `node_id`, the broker that answers the
        client, unless this broker is fenced or not registered. The result does not depend on which broker is the
        controller, since the controller may have stopped. Kafka's brokers return any running broker.
        """
        if self.is_online(node_id):
            return node_id
        return next((broker.broker_id for broker in self.brokers.values() if not broker.fenced), -1)


EMPTY_IMAGE: Final = MetadataImage()


class ImageBuilder:
    """Applies records to an image. The image itself is not changed: a mapping is copied before a record changes it.

    Most mappings are small and are copied again for each record that changes them. The mappings of topics and quotas,
    and a topic's tuple of partitions, may be large, so they are copied once for many changes.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.position = image.position
        self.controller_epoch = image.controller_epoch
        self._cluster_id = image.cluster_id
        self._controller_id = image.controller_id
        self._producer_ids_next = image.producer_ids_next
        self._partition_count = image.partition_count
        self._brokers = image.brokers
        self._topics = image.topics
        self._topics_by_id = image.topics_by_id
        self._broker_configs = image.broker_configs
        self._group_configs = image.group_configs
        self._client_quotas = image.client_quotas
        self._copied_quotas: dict[Entity, Mapping[str, float]] | None = None
        self._client_metrics_configs = image.client_metrics_configs
        self._feature_levels = image.feature_levels
        self._copied_topics: tuple[dict[str, TopicImage], dict[TopicId, TopicImage]] | None = None
        self._changed_partitions: dict[TopicId, list[PartitionState]] = {}
        """For each topic with changed partitions, the states of all its partitions. Each list is a copy, which is made
        once for many changes. `_store_changed_partitions` writes the states into the topics."""

    def apply(self, records: Iterable[JournalRecord]) -> "ImageBuilder":
        """Apply the records of one entry. The decision that created the records must be based on the builder's state
        before this call.
        """
        return run_all(self.apply_in_steps(records))

    def apply_in_steps(self, records: Iterable[JournalRecord]) -> "Steps[ImageBuilder]":
        """Apply the records in steps; see `apply`."""
        for record in records:
            _APPLY[type(record)](self, record)
            yield
        self.position += 1
        return self

    def build(self) -> MetadataImage:
        self._store_changed_partitions()
        self._copied_topics = None
        self._copied_quotas = None
        return MetadataImage(
            position=self.position,
            cluster_id=self._cluster_id,
            controller_id=self._controller_id,
            controller_epoch=self.controller_epoch,
            brokers=self._brokers,
            topics=self._topics,
            topics_by_id=self._topics_by_id,
            broker_configs=self._broker_configs,
            group_configs=self._group_configs,
            client_quotas=self._client_quotas,
            client_metrics_configs=self._client_metrics_configs,
            producer_ids_next=self._producer_ids_next,
            partition_count=self._partition_count,
            feature_levels=self._feature_levels,
        )

    # One method for each kind of record

    def _cluster_named(self, record: ClusterNamed) -> None:
        self._cluster_id = record.cluster_id

    def _controller_elected(self, record: ControllerElected) -> None:
        self._controller_id = record.broker_id
        self.controller_epoch = record.epoch

    def _broker_registered(self, record: BrokerRegistered) -> None:
        registration = BrokerRegistration(*record)
        brokers = {**self._brokers, record.broker_id: registration}
        self._brokers = dict(sorted(brokers.items()))

    def _broker_state_changed(self, record: BrokerStateChanged) -> None:
        registration = self._brokers[record.broker_id]
        assert registration.epoch == record.epoch
        if record.fenced is not None:
            registration = registration._replace(fenced=record.fenced)
            if not record.fenced:
                # From now on this run of the broker acknowledges records. So at the next registration, the directories
                # must contain the epoch of this run.
                registration = registration._replace(records_epoch=-1, records_synced=False)
        if record.in_controlled_shutdown is not None:
            registration = registration._replace(in_controlled_shutdown=record.in_controlled_shutdown)
        self._brokers = {**self._brokers, record.broker_id: registration}

    def _broker_unregistered(self, record: BrokerUnregistered) -> None:
        assert self._brokers[record.broker_id].epoch == record.epoch
        self._brokers = {number: broker for number, broker in self._brokers.items() if number != record.broker_id}

    def _feature_level_changed(self, record: FeatureLevelChanged) -> None:
        levels = {**self._feature_levels, record.feature: record.level}
        self._feature_levels = {name: level for name, level in levels.items() if level or name in LEVELS_WITHOUT_RECORD}

    def _leadership_renewed(self, record: LeadershipRenewed) -> None:
        renewed: dict[PartitionState, PartitionState] = {}
        self._store_changed_partitions()
        for topic in list(self._topics.values()):
            partitions = tuple(_renewed(state, record.broker_id, renewed) for state in topic.partitions)
            if partitions != topic.partitions:
                self._put(TopicImage(topic.name, topic.topic_id, partitions, topic.config))

    def _topic_created(self, record: TopicCreated) -> None:
        self._partition_count += len(record.partitions)
        self._put(TopicImage(record.name, record.topic_id, record.partitions, record.config))

    def _partitions_added(self, record: PartitionsAdded) -> None:
        topic = self._topic(record.topic_id)
        assert record.first == len(topic.partitions)
        partitions = topic.partitions + new_partitions(record.replicas, record.isrs)
        self._partition_count += len(record.replicas)
        self._put(TopicImage(topic.name, topic.topic_id, partitions, topic.config))

    def _partition_changed(self, record: PartitionChanged) -> None:
        self._change_states(
            StateChange(
                {record.topic_id: (record.partition,)}, leader=record.leader, isr=record.isr, replicas=record.replicas
            )
        )

    def _partition_states_changed(self, record: PartitionStatesChanged) -> None:
        for change in record.changes:
            self._change_states(change)

    def _change_states(self, change: StateChange) -> None:
        """Apply the same change to the states of several partitions. Each partition epoch is incremented. If the change
        contains a leader, each leader epoch is incremented, too.
        """
        changed_fields = {name: value for name, value in change._asdict().items() if value is not None}
        del changed_fields["partitions"]
        changed_states: dict[PartitionState, PartitionState] = {}  # equal states share one object
        for topic_id, numbers in change.partitions.items():
            states = self._changed_partitions.get(topic_id)
            if states is None:
                states = self._changed_partitions[topic_id] = list(self._topics_by_id[topic_id].partitions)
            for number in numbers:
                state = states[number]
                new_state = changed_states.get(state)
                if new_state is None:
                    new_state = changed_states[state] = state._replace(
                        leader_epoch=state.leader_epoch + (change.leader is not None),
                        partition_epoch=state.partition_epoch + 1,
                        **changed_fields,
                    )
                states[number] = new_state

    def _topic_deleted(self, record: TopicDeleted) -> None:
        self._changed_partitions.pop(record.topic_id, None)
        topics, topics_by_id = self._writable_topics()
        topic = topics_by_id.pop(record.topic_id)
        del topics[topic.name]
        self._partition_count -= len(topic.partitions)

    def _topic_config_changed(self, record: TopicConfigChanged) -> None:
        topic = self._topic(record.topic_id)
        config = _with_setting(topic.config, record.setting, record.value)
        self._put(TopicImage(topic.name, topic.topic_id, topic.partitions, config))

    def _broker_config_changed(self, record: BrokerConfigChanged) -> None:
        self._broker_configs = _with_setting_of(self._broker_configs, record.broker, record.setting, record.value)

    def _group_config_changed(self, record: GroupConfigChanged) -> None:
        self._group_configs = _with_setting_of(self._group_configs, record.group, record.setting, record.value)

    def _client_quota_changed(self, record: ClientQuotaChanged) -> None:
        if self._copied_quotas is None:
            self._client_quotas = self._copied_quotas = dict(self._client_quotas)
        values = dict(self._copied_quotas.pop(record.entity, {}))
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:  # an entity without quotas is not listed
            self._copied_quotas[record.entity] = values

    def _client_metrics_config_changed(self, record: ClientMetricsConfigChanged) -> None:
        self._client_metrics_configs = _with_setting_of(
            self._client_metrics_configs, record.subscription, record.setting, record.value
        )

    def _producer_ids_allocated(self, record: ProducerIdsAllocated) -> None:
        self._producer_ids_next = record.next_id

    # Copies

    def _topic(self, topic_id: TopicId) -> TopicImage:
        """Return the topic with the changes of all records that were applied up to now."""
        if topic_id in self._changed_partitions:
            self._store_changed_partitions()
        return self._topics_by_id[topic_id]

    def _store_changed_partitions(self) -> None:
        for topic_id, states in self._changed_partitions.items():
            topic = self._topics_by_id[topic_id]
            self._put(TopicImage(topic.name, topic_id, tuple(states), topic.config))
        self._changed_partitions = {}

    def _put(self, topic: TopicImage) -> None:
        topics, topics_by_id = self._writable_topics()
        topics[topic.name] = topic
        topics_by_id[topic.topic_id] = topic

    def _writable_topics(self) -> tuple[dict[str, TopicImage], dict[TopicId, TopicImage]]:
        if self._copied_topics is None:
            self._copied_topics = (dict(self._topics), dict(self._topics_by_id))
            self._topics, self._topics_by_id = self._copied_topics
        return self._copied_topics


_APPLY: dict[type[Any], Callable[[ImageBuilder, Any], None]] = {
    ClusterNamed: ImageBuilder._cluster_named,
    ControllerElected: ImageBuilder._controller_elected,
    BrokerRegistered: ImageBuilder._broker_registered,
    LeadershipRenewed: ImageBuilder._leadership_renewed,
    TopicCreated: ImageBuilder._topic_created,
    PartitionsAdded: ImageBuilder._partitions_added,
    PartitionChanged: ImageBuilder._partition_changed,
    TopicDeleted: ImageBuilder._topic_deleted,
    TopicConfigChanged: ImageBuilder._topic_config_changed,
    BrokerConfigChanged: ImageBuilder._broker_config_changed,
    GroupConfigChanged: ImageBuilder._group_config_changed,
    ClientQuotaChanged: ImageBuilder._client_quota_changed,
    ClientMetricsConfigChanged: ImageBuilder._client_metrics_config_changed,
    ProducerIdsAllocated: ImageBuilder._producer_ids_allocated,
    FeatureLevelChanged: ImageBuilder._feature_level_changed,
    BrokerStateChanged: ImageBuilder._broker_state_changed,
    BrokerUnregistered: ImageBuilder._broker_unregistered,
    PartitionStatesChanged: ImageBuilder._partition_states_changed,
}


def snapshot(image: MetadataImage) -> list[JournalRecord]:
    """Return records whose replay on an empty image results in `image`, except for its position."""
    records: list[JournalRecord] = [
        ClusterNamed(image.cluster_id),
        ControllerElected(image.controller_id, image.controller_epoch),
        ProducerIdsAllocated(image.controller_id, image.producer_ids_next),
    ]
    records += [FeatureLevelChanged(feature, level) for feature, level in image.feature_levels.items()]
    records += [BrokerRegistered(*broker) for broker in image.brokers.values()]
    for broker, settings in image.broker_configs.items():
        records += [BrokerConfigChanged(broker, setting, value) for setting, value in settings.items()]
    for group, settings in image.group_configs.items():
        records += [GroupConfigChanged(group, setting, value) for setting, value in settings.items()]
    for entity, values in image.client_quotas.items():
        records += [ClientQuotaChanged(entity, key, bound) for key, bound in values.items()]
    for name, settings in image.client_metrics_configs.items():
        records += [ClientMetricsConfigChanged(name, setting, value) for setting, value in settings.items()]
    records += [TopicCreated(t.name, t.topic_id, t.partitions, t.config) for t in image.topics.values()]
    return records


def _renewed(state: PartitionState, broker_id: int, renewed: dict[PartitionState, PartitionState]) -> PartitionState:
    """Return the state in a new leader epoch if the broker leads the partition; otherwise the state itself.

    `renewed` maps states that were seen before to their new states, so that equal states share one object.
    """
    if state.leader != broker_id:
        return state
    new_state = renewed.get(state)
    if new_state is None:
        new_state = state._replace(leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)
        renewed[state] = new_state
    return new_state


def _with_setting(settings: Mapping[str, str], setting: str, value: str | None) -> dict[str, str]:
    changed = dict(settings)
    if value is None:
        changed.pop(setting, None)
    else:
        changed[setting] = value
    return changed


def _with_setting_of(
    configs: Mapping[str, Mapping[str, str]], owner: str, setting: str, value: str | None
) -> dict[str, Mapping[str, str]]:
    """Return `configs` with one setting of `owner` changed. If `owner` then has no settings, it is removed."""
    changed = dict(configs)
    config = _with_setting(changed.pop(owner, {}), setting, value)
    if config:
        changed[owner] = config
    return changed
