"""What a client may do, as bits of the ACL operations (KIP-430). There is no access control: everything."""

from typing import Final

NOT_ASKED: Final = -(1 << 31)

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    1 << code for code in range(3, 13)
)

ON_TOPIC: Final = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
ON_CLUSTER: Final = CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE
