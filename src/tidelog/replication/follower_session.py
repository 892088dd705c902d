"""The follower's side of a fetch session (KIP-227): fill in the partitions of the next request, and check the
partitions of its answer. Pure.

The leader remembers the partitions of a session. Therefore a request names only new partitions, changed partitions and
partitions that the follower no longer fetches. After any failure the session begins anew: a full request names every
partition.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.client.error_codes import error_name
from tidelog.client.errors import BrokenProtocol
from tidelog.wire.errors import ErrorCode, error_for
from tidelog.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

if TYPE_CHECKING:
    from tidelog.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

NO_SESSION = 0
INITIAL_EPOCH = 0
INT32_MAX = 2**31 - 1

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition index."""


class FetchPosition(NamedTuple):
    """The state of a followed partition that its leader must know."""

    leader_epoch: int
    """The leader epoch in which this broker follows the partition."""
    fetch_offset: int
    last_fetched_epoch: int
    """The latest epoch of the follower's log; -1 if the log has no epoch."""
    log_start_offset: int


class PartitionAnswer(NamedTuple):
    """The leader's answer for one partition, and the fetch position that the leader had for this partition."""

    key: PartitionKey
    position: FetchPosition
    data: "PartitionData"


class FollowerSession:
    """The session with one leader. At most one request is in flight: `fill`, then `accept` or `begin_anew`."""

    def __init__(self, partition_bytes_max: int) -> None:
        self.positions: dict[PartitionKey, FetchPosition] = {}
        """The partitions to fetch, with their positions. Only `put` and `remove` change this dict."""
        self._partition_bytes_max = partition_bytes_max
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._positions_at_leader: dict[PartitionKey, FetchPosition] = {}
        """The partitions of the session, with the positions that the leader has after the last request."""
        self._changed: dict[PartitionKey, None] = {}
        self._forgotten: dict[PartitionKey, None] = {}

    def put(self, key: PartitionKey, position: FetchPosition) -> None:
        """Fetch this partition from this position, from the next request on."""
        self.positions[key] = position
        self._forgotten.pop(key, None)
        if self._positions_at_leader.get(key) == position:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def remove(self, key: PartitionKey) -> None:
        """Stop fetching this partition, from the next request on. Nothing happens if it is not fetched."""
        self.positions.pop(key, None)
        self._changed.pop(key, None)
        if key in self._positions_at_leader:
            self._forgotten[key] = None

    @property
    def has_changes(self) -> bool:
        """Whether a partition is new, or its position has changed, since the last request."""
        return bool(self._changed)

    def begin_anew(self) -> None:
        """Make the next request a full request, which also ends the old session at the leader."""
        self._epoch = INITIAL_EPOCH
        self._positions_at_leader = {}

    def fill(self, request: "FetchRequest") -> None:
        """Write the session and the partitions into the next request."""
        at_leader = self._positions_at_leader
        if self._epoch == INITIAL_EPOCH:
            named, forgotten = self.positions, {}
            at_leader.clear()
        else:
            named, forgotten = {key: self.positions[key] for key in self._changed}, self._forgotten
        request.session_id = self._session_id
        request.session_epoch = self._epoch
        topics: dict[bytes, FetchTopic] = {}
        for key, position in named.items():
            at_leader[key] = position
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0])
            topic.partitions.append(self._fetch_partition(key[1], position))
        forgotten_topics: dict[bytes, ForgottenTopic] = {}
        for key in forgotten:
            at_leader.pop(key, None)
            forgotten_topics.setdefault(key[0], ForgottenTopic(topic_id=key[0])).partitions.append(key[1])
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(forgotten_topics.values())
        self._changed, self._forgotten = {}, {}

    def _fetch_partition(self, index: int, position: FetchPosition) -> FetchPartition:
        return FetchPartition(
            partition=index,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.fetch_offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=self._partition_bytes_max,
        )

    def accept(self, response: "FetchResponse") -> list[PartitionAnswer]:
        """Process the response to the last request, and return its partitions.

        Raises ApiError for an error of the whole response, and BrokenProtocol if the response does not fit the request.
        In both cases the session begins anew.
        """
        try:
            if response.error_code != ErrorCode.NONE:
                if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                    self._session_id = NO_SESSION
                raise error_for(response.error_code, f"fetch: {error_name(response.error_code)}")
            answers = self._partitions_in(response)
            if self._epoch == INITIAL_EPOCH:
                self._check_complete(answers)
        except Exception:
            self.begin_anew()
            raise
        is_new = self._epoch == INITIAL_EPOCH
        if response.session_id != NO_SESSION and (is_new or response.session_id == self._session_id):
            self._session_id = response.session_id
            self._epoch = self._epoch % INT32_MAX + 1
        else:  # the leader has no space for the session, or has ended the session
            self._session_id = NO_SESSION
            self.begin_anew()
        return answers

    def _partitions_in(self, response: "FetchResponse") -> list[PartitionAnswer]:
        answers: dict[PartitionKey, PartitionAnswer] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                position = self._positions_at_leader.get(key)
                if position is None or key in answers:
                    reason = "that was not requested" if position is None else "twice"
                    raise BrokenProtocol(f"fetch: the answer has partition {key[1]} of topic {key[0].hex()} {reason}")
                answers[key] = PartitionAnswer(key, position, data)
        return list(answers.values())

    def _check_complete(self, answers: list[PartitionAnswer]) -> None:
        if len(answers) != len(self._positions_at_leader):
            missing = len(self._positions_at_leader) - len(answers)
            raise BrokenProtocol(f"fetch: the answer to a full request lacks {missing} partitions")
