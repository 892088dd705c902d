"""The operations that a client may do, as a bit mask of ACL operations (KIP-430). Without access control, a client may
do every operation."""

from typing import Final

OPERATIONS_NOT_REQUESTED: Final = -(1 << 31)
"""The value of the field if the request did not ask for operations."""

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    1 << code for code in range(3, 13)
)

TOPIC_OPERATIONS: Final = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
CLUSTER_OPERATIONS: Final = (
    CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE
)
