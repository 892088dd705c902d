"""The operations that a client may perform, as a bit mask of ACL operations (KIP-430). There is no access control, so
every client may perform every operation."""

from typing import Final

OPERATIONS_NOT_REQUESTED: Final = -(1 << 31)
"""In a response, this number replaces the bit mask if the request did not ask for the allowed operations."""

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    1 << code for code in range(3, 13)
)

TOPIC_OPERATIONS: Final = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
CLUSTER_OPERATIONS: Final = (
    CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE
)
