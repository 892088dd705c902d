"""The error codes of the protocol and their exceptions. Only this module maps codes to exceptions and exceptions to
codes.

The names and numbers of the codes are those of Kafka 4.3 (`org.apache.kafka.common.protocol.Errors`). A handler raises
an exception, and the API layer writes the exception's code into the response. A client converts a code into an
exception with `error_for`.
"""

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Values of `error_code` fields."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
"""Codes after which a client may send the same request again."""


class ApiError(Exception):
    """The response to a request, or to one item of it, has the error `code`.

    `message` says what is wrong, where, and how to correct it. It is sent to the client if the response has a field
    for messages.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str = "", code: ErrorCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


class _CodedError(ApiError):
    """Base class of exceptions with their own code. Defining a subclass adds it to `by_code`."""

    by_code: ClassVar[dict[ErrorCode, type[ApiError]]] = {}

    def __init_subclass__(cls, code: ErrorCode) -> None:
        super().__init_subclass__()
        assert code not in _CodedError.by_code, f"{cls.__name__}: {code.name} has an exception already"
        cls.code = code
        _CodedError.by_code[code] = cls


class CorruptMessage(_CodedError, code=ErrorCode.CORRUPT_MESSAGE): ...


class CoordinatorLoadInProgress(_CodedError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): ...


class CoordinatorNotAvailable(_CodedError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE): ...


class FencedInstanceId(_CodedError, code=ErrorCode.FENCED_INSTANCE_ID): ...


class FencedLeaderEpoch(_CodedError, code=ErrorCode.FENCED_LEADER_EPOCH): ...


class FetchSessionIdNotFound(_CodedError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND): ...


class FetchSessionTopicIdError(_CodedError, code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR): ...


class GroupIdNotFound(_CodedError, code=ErrorCode.GROUP_ID_NOT_FOUND): ...


class GroupMaxSizeReached(_CodedError, code=ErrorCode.GROUP_MAX_SIZE_REACHED): ...


class IllegalGeneration(_CodedError, code=ErrorCode.ILLEGAL_GENERATION): ...


class InconsistentGroupProtocol(_CodedError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL): ...


class InconsistentTopicId(_CodedError, code=ErrorCode.INCONSISTENT_TOPIC_ID): ...


class InvalidConfig(_CodedError, code=ErrorCode.INVALID_CONFIG): ...


class InvalidFetchSessionEpoch(_CodedError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH): ...


class InvalidGroupId(_CodedError, code=ErrorCode.INVALID_GROUP_ID): ...


class InvalidPartitions(_CodedError, code=ErrorCode.INVALID_PARTITIONS): ...


class InvalidProducerEpoch(_CodedError, code=ErrorCode.INVALID_PRODUCER_EPOCH): ...


class InvalidRecord(_CodedError, code=ErrorCode.INVALID_RECORD): ...


class InvalidReplicaAssignment(_CodedError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT): ...


class InvalidReplicationFactor(_CodedError, code=ErrorCode.INVALID_REPLICATION_FACTOR): ...


class InvalidRequest(_CodedError, code=ErrorCode.INVALID_REQUEST): ...


class InvalidRequiredAcks(_CodedError, code=ErrorCode.INVALID_REQUIRED_ACKS): ...


class InvalidSessionTimeout(_CodedError, code=ErrorCode.INVALID_SESSION_TIMEOUT): ...


class InvalidTimestamp(_CodedError, code=ErrorCode.INVALID_TIMESTAMP): ...


class InvalidTopic(_CodedError, code=ErrorCode.INVALID_TOPIC_EXCEPTION): ...


class LeaderNotAvailable(_CodedError, code=ErrorCode.LEADER_NOT_AVAILABLE): ...


class MemberIdRequired(_CodedError, code=ErrorCode.MEMBER_ID_REQUIRED): ...


class NonEmptyGroup(_CodedError, code=ErrorCode.NON_EMPTY_GROUP): ...


class NotCoordinator(_CodedError, code=ErrorCode.NOT_COORDINATOR): ...


class NotController(_CodedError, code=ErrorCode.NOT_CONTROLLER): ...


class NotEnoughReplicas(_CodedError, code=ErrorCode.NOT_ENOUGH_REPLICAS): ...


class NotEnoughReplicasAfterAppend(_CodedError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND): ...


class NotLeaderOrFollower(_CodedError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER): ...


class OffsetMetadataTooLarge(_CodedError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE): ...


class OffsetNotAvailable(_CodedError, code=ErrorCode.OFFSET_NOT_AVAILABLE): ...


class OffsetOutOfRange(_CodedError, code=ErrorCode.OFFSET_OUT_OF_RANGE): ...


class OutOfOrderSequenceNumber(_CodedError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER): ...


class RebalanceInProgress(_CodedError, code=ErrorCode.REBALANCE_IN_PROGRESS): ...


class RecordListTooLarge(_CodedError, code=ErrorCode.RECORD_LIST_TOO_LARGE): ...


class RecordTooLarge(_CodedError, code=ErrorCode.MESSAGE_TOO_LARGE): ...


class RequestTimedOut(_CodedError, code=ErrorCode.REQUEST_TIMED_OUT): ...


class StorageError(_CodedError, code=ErrorCode.KAFKA_STORAGE_ERROR): ...


class TopicAlreadyExists(_CodedError, code=ErrorCode.TOPIC_ALREADY_EXISTS): ...


class UnknownLeaderEpoch(_CodedError, code=ErrorCode.UNKNOWN_LEADER_EPOCH): ...


class UnknownMemberId(_CodedError, code=ErrorCode.UNKNOWN_MEMBER_ID): ...


class UnknownProducerId(_CodedError, code=ErrorCode.UNKNOWN_PRODUCER_ID): ...


class UnknownTopicId(_CodedError, code=ErrorCode.UNKNOWN_TOPIC_ID): ...


class UnknownTopicOrPartition(_CodedError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): ...


class UnstableOffsetCommit(_CodedError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT): ...


class UnsupportedCompressionType(_CodedError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE): ...


class UnsupportedForMessageFormat(_CodedError, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT): ...


class UnsupportedVersion(_CodedError, code=ErrorCode.UNSUPPORTED_VERSION): ...


def error_for(code: int, message: str = "") -> ApiError:
    """Return the exception for `code`. A code that this version of Tidelog does not know becomes
    UNKNOWN_SERVER_ERROR.
    """
    try:
        error_code = ErrorCode(code)
    except ValueError:
        return ApiError(message or f"the peer answered with error code {code}, which is not known here")
    exception = _CodedError.by_code.get(error_code)
    return exception(message) if exception else ApiError(message, error_code)
