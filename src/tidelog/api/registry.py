"""The table of APIs: the handler module and version range of each API key. A module is imported at the first
request for its API.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.model.steps import Steps
from tidelog.wire.apis import APIS
from tidelog.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidelog.api.produce_single import ProduceTemplates


class ApiEntry(NamedTuple):
    """One row of the table."""

    module: str
    """The module of `tidelog.api` with the handler."""
    min_version: int
    """The lowest version that the handler serves."""
    max_version: int
    advertised_min: int
    """The lowest version of this API that a response to ApiVersions states."""
    has_effects: bool
    """Whether a request changes state that still exists after its connection is closed."""


def _with_effects(module: str, min_version: int, max_version: int, advertised_min: int | None = None) -> ApiEntry:
    return ApiEntry(module, min_version, max_version, min_version if advertised_min is None else advertised_min, True)


def _read_only(module: str, min_version: int, max_version: int) -> ApiEntry:
    """Return the row of an API whose requests may be abandoned when the client disconnects.

    Requests of most of these APIs change nothing. Requests of Metadata and FindCoordinator may create topics: if such
    a request is abandoned, a creation that has begun is still completed.
    """
    return ApiEntry(module, min_version, max_version, min_version, False)


TABLE: dict[int, ApiEntry] = {
    # Versions below 3 are not served, as in Kafka. But v0 is advertised, since librdkafka silently stops compressing if
    # v0 is missing (KAFKA-18659).
    0: _with_effects("produce", 3, 13, advertised_min=0),
    1: _read_only("fetch", 4, 18),
    2: _read_only("list_offsets", 1, 11),
    3: _read_only("metadata", 0, 13),
    8: _with_effects("offset_commit", 2, 10),
    9: _read_only("offset_fetch", 1, 10),
    10: _read_only("find_coordinator", 0, 6),
    11: _with_effects("join_group", 0, 9),
    12: _with_effects("heartbeat", 0, 4),
    13: _with_effects("leave_group", 0, 5),
    14: _with_effects("sync_group", 0, 5),
    15: _read_only("describe_groups", 0, 6),
    16: _read_only("list_groups", 0, 5),
    18: _read_only("api_versions", 0, 4),
    19: _with_effects("create_topics", 2, 7),
    20: _with_effects("delete_topics", 1, 6),
    21: _with_effects("delete_records", 0, 2),
    22: _with_effects("init_producer_id", 0, 5),
    23: _read_only("offset_for_leader_epoch", 2, 4),
    24: _with_effects("add_partitions_to_txn", 0, 5),
    25: _with_effects("add_offsets_to_txn", 0, 4),
    26: _with_effects("end_txn", 0, 5),
    27: _with_effects("write_txn_markers", 1, 2),
    28: _with_effects("txn_offset_commit", 0, 5),
    32: _read_only("describe_configs", 1, 4),
    33: _with_effects("alter_configs", 0, 2),
    34: _with_effects("alter_replica_log_dirs", 1, 2),
    35: _read_only("describe_log_dirs", 1, 5),
    37: _with_effects("create_partitions", 0, 3),
    42: _with_effects("delete_groups", 0, 2),
    43: _with_effects("elect_leaders", 0, 2),
    44: _with_effects("incremental_alter_configs", 0, 1),
    45: _with_effects("alter_partition_reassignments", 0, 1),
    46: _read_only("list_partition_reassignments", 0, 0),
    47: _with_effects("offset_delete", 0, 0),
    48: _read_only("describe_client_quotas", 0, 1),
    49: _with_effects("alter_client_quotas", 0, 1),
    57: _with_effects("update_features", 0, 2),
    55: _read_only("describe_quorum", 0, 2),
    60: _read_only("describe_cluster", 0, 2),
    61: _read_only("describe_producers", 0, 0),
    64: _with_effects("unregister_broker", 0, 0),
    65: _read_only("describe_transactions", 0, 0),
    66: _read_only("list_transactions", 0, 2),
    68: _with_effects("consumer_group_heartbeat", 0, 1),
    69: _read_only("consumer_group_describe", 0, 1),
    74: _read_only("list_config_resources", 0, 1),
    75: _read_only("describe_topic_partitions", 0, 0),
}
"""Every supported API with the version range of Kafka 4.3.1."""
BETWEEN_BROKERS: dict[int, ApiEntry] = {58: _with_effects("envelope", 0, 0)}
"""The APIs that only brokers of the same cluster use. ApiVersions does not list them."""

API_VERSIONS_KEY = 18
PRODUCE_KEY = 0


class Route:
    """The functions that decode, handle and encode one API in one version."""

    __slots__ = (
        "api_key",
        "decode",
        "encode",
        "flexible_request",
        "flexible_response",
        "handle",
        "handle_wide",
        "has_effects",
        "name",
        "produce_templates",
        "request",
        "response",
        "stepwise_decoder",
        "stepwise_encoder",
        "version",
    )

    def __init__(self, api_key: int, version: int) -> None:
        info = APIS[api_key]
        entry = TABLE.get(api_key) or BETWEEN_BROKERS[api_key]
        module = import_module(f"tidelog.api.{entry.module}")
        messages = import_module(f"tidelog.wire.messages.{info.module}")
        self.api_key = api_key
        self.has_effects = entry.has_effects
        self.version = version
        self.name = info.name
        self.handle: Callable[..., Any] = module.handle
        self.handle_wide: Callable[..., Any] = getattr(module, "handle_wide", module.handle)
        """The handler for long requests; equal to `handle` if the module has no `handle_wide`."""
        self.request: type[Any] = getattr(messages, f"{info.name}Request")
        self.decode: Callable[[memoryview, int], tuple[Any, int]] = self.request.decoder(version)
        self.response: type[Any] = getattr(messages, f"{info.name}Response")
        self.encode: Callable[[Any], list[Any]] = self.response.pieces_encoder(version)
        self.stepwise_decoder: Callable[..., Any] | None = None
        self.stepwise_encoder: Callable[..., Any] | None = None
        self.produce_templates: ProduceTemplates | None = None
        """The templates of the fast path; only for Produce."""
        if api_key == PRODUCE_KEY:
            from tidelog.api import produce_single

            if version >= produce_single.SINCE_VERSION:
                self.produce_templates = produce_single.ProduceTemplates(version)
        self.flexible_request = version >= info.flexible_from
        # Responses to ApiVersions never have tagged fields in their header, since the client does not know the broker's
        # versions yet (KIP-511).
        self.flexible_response = self.flexible_request and api_key != API_VERSIONS_KEY

    def decode_in_steps(self, frame: memoryview, position: int) -> Steps[Any]:
        """Decode the request at `position` in steps. Raises MalformedMessage."""
        if self.stepwise_decoder is None:
            self.stepwise_decoder = self.request.stepwise_decoder(self.version)
        request, _ = yield from self.stepwise_decoder(frame, position)
        return request

    def encode_in_steps(self, response: Any) -> Steps[list[Any]]:
        """Encode a response in steps."""
        if self.stepwise_encoder is None:
            self.stepwise_encoder = self.response.stepwise_encoder(self.version)
        pieces: list[Any] = yield from self.stepwise_encoder(response)
        return pieces

    def error_response(self, error: ApiError) -> Any:
        """Return the response that contains only `error`; None if the API has no field for it."""
        slots: tuple[str, ...] = self.response.__slots__
        if "error_code" not in slots:
            return None
        response = self.response(error_code=error.code)
        if "error_message" in slots:
            response.error_message = error.message
        return response


routes: dict[int, Route] = {}
"""The routes that have been used. The key of a route is `api_key << 16 | version`."""
_broker_routes: dict[int, Route] = {}
"""The routes of BETWEEN_BROKERS that have been used. Their keys have the same form as in `routes`."""


def find_route(api_key: int, version: int) -> Route:
    """Return the route of an API version. Raises ApiError (UNSUPPORTED_VERSION) if the table does not have it."""
    known_route = routes.get(api_key << 16 | version)
    if known_route is None:
        entry = TABLE.get(api_key)
        if entry is None or not entry.min_version <= version <= entry.max_version:
            raise ApiError(f"API key {api_key} version {version} is not served", ErrorCode.UNSUPPORTED_VERSION)
        known_route = routes[api_key << 16 | version] = Route(api_key, version)
    return known_route


def find_broker_route(api_key: int, version: int) -> Route | None:
    """Return the route of an API that only brokers use, or None if there is no such API or version."""
    known_route = _broker_routes.get(api_key << 16 | version)
    if known_route is None:
        entry = BETWEEN_BROKERS.get(api_key)
        if entry is None or not entry.min_version <= version <= entry.max_version:
            return None
        known_route = _broker_routes[api_key << 16 | version] = Route(api_key, version)
    return known_route
