"""The public methods of the Python clients' admin interfaces, and the APIs that each method needs.

tests/interop/test_admin_*.py run them with either broker. docs/compatibility.md shows the table.
"""

from typing import NamedTuple

from tidelog.api.registry import TABLE
from tidelog.wire.apis import APIS

REFUSED = r"(?i)unsupported|not support|incompatible"
"""The clients' messages for an API that the broker does not offer."""
SECURITY_DISABLED = r"(?i)security_?disabled|no authorizer"
"""Kafka's messages for ACLs when it has no authorizer."""


class Method(NamedTuple):
    """A method. `needs` are the keys of APIs. Without one of them it fails with an error that matches `REFUSED`."""

    needs: tuple[int, ...] = ()
    kafka: str = ""
    """Kafka's error message, if Kafka refuses the call in the tests' configuration."""
    own: bool = False
    """Whether the method sends no request."""
    why_not_called: str = ""
    """Why the tests do not call the method while Tidelog does not serve an API that it needs."""


WORKS = Method()
OWN = Method(own=True)
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")

METHODS: dict[str, dict[str, Method]] = {
    "confluent-kafka": {
        "alter_configs": WORKS,
        "alter_consumer_group_offsets": WORKS,
        "alter_user_scram_credentials": Method((51,)),
        "create_acls": Method((30,), SECURITY_DISABLED),
        "create_partitions": WORKS,
        "create_topics": WORKS,
        "delete_acls": Method((31,), SECURITY_DISABLED),
        "delete_consumer_groups": Method((42,), why_not_called="librdkafka 2.16 would end the process"),
        "delete_records": WORKS,
        "delete_topics": WORKS,
        "describe_acls": Method((29,)),
        "describe_cluster": WORKS,
        "describe_configs": WORKS,
        "describe_consumer_groups": WORKS,
        "describe_topics": WORKS,
        "describe_user_scram_credentials": Method((50,)),
        "elect_leaders": Method((43,)),
        "incremental_alter_configs": WORKS,
        "list_consumer_group_offsets": WORKS,
        "list_consumer_groups": WORKS,
        "list_groups": WORKS,
        "list_offsets": WORKS,
        "list_topics": WORKS,
        "cluster_id": WORKS,
        "poll": OWN,
        "set_sasl_credentials": OWN,
    },
    "kafka-python": {
        "abort_transaction": Method((27,)),
        "alter_configs": WORKS,
        "alter_group_offsets": WORKS,
        "alter_partition_reassignments": Method((45,)),
        "alter_replica_log_dirs": WORKS,
        "alter_user_scram_credentials": Method((51,)),
        "api_versions": WORKS,
        "close": OWN,
        "create_acls": Method((30,), SECURITY_DISABLED),
        "create_partitions": WORKS,
        "create_topics": WORKS,
        "delete_acls": Method((31,), SECURITY_DISABLED),
        "delete_group_offsets": Method((47,)),
        "delete_groups": Method((42,)),
        "delete_records": WORKS,
        "delete_topics": WORKS,
        "describe_acls": Method((29,), SECURITY_DISABLED),
        "describe_cluster": WORKS,
        "describe_configs": WORKS,
        "describe_features": WORKS,
        "describe_groups": WORKS,
        "describe_log_dirs": WORKS,
        "describe_metadata_quorum": Method((55,)),
        "describe_producers": WORKS,
        "describe_topic_partitions": WORKS,
        "describe_topics": WORKS,
        "describe_transactions": Method((65,)),
        "describe_user_scram_credentials": Method((50,)),
        "elect_leaders": Method((43,)),
        "find_hanging_transactions": Method((66,)),
        "get_broker_version_data": WORKS,
        "list_config_resources": WORKS,
        "list_group_offsets": WORKS,
        "list_groups": WORKS,
        "list_partition_offsets": WORKS,
        "list_partition_reassignments": WORKS,
        "list_topics": WORKS,
        "list_transactions": Method((66,)),
        "remove_group_members": WORKS,
        "reset_configs": WORKS,
        "reset_group_offsets": WORKS,
        "update_features": WORKS,
        "wait_for_topics": WORKS,
    },
    "aiokafka": {
        "alter_configs": WORKS,
        "close": OWN,
        "create_partitions": WORKS,
        "create_topics": WORKS,
        "delete_records": WORKS,
        "delete_topics": WORKS,
        "describe_cluster": WORKS,
        "describe_configs": WORKS,
        "describe_consumer_groups": WORKS,
        "describe_topics": WORKS,
        "find_coordinator": WORKS,
        "list_consumer_group_offsets": WORKS,
        "list_consumer_groups": WORKS,
        "list_topics": WORKS,
        "start": OWN,
    },
}


def public_methods(admin: type) -> set[str]:
    return {name for name in dir(admin) if not name.startswith("_") and callable(getattr(admin, name))}


def missing(method: Method) -> list[int]:
    """Return the APIs that the method needs and that Tidelog does not serve."""
    return [key for key in method.needs if key not in TABLE]


def table() -> str:
    """Return a Markdown table with a row for each method and its result in each client that has it."""
    lines = [f"| method | {' | '.join(CLIENTS)} |", f"| --- |{' --- |' * len(CLIENTS)}"]
    for name in sorted({name for methods in METHODS.values() for name in methods}):
        cells = [_cell(METHODS[client].get(name)) for client in CLIENTS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(method: Method | None) -> str:
    if method is None:
        return ""
    lacking = missing(method)
    if lacking:
        verb = f"not tried, {method.why_not_called}" if method.why_not_called else "refused"
        return f"{verb}: no {', '.join(f'{APIS[key].name} ({key})' for key in lacking)}"
    return "works (sends no request)" if method.own else "works"
