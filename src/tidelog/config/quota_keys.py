"""Settings of a broker about quotas: how far back they look."""

from tidelog.config.key import AtLeast, Key, Type

INT = Type.INT

KEYS: tuple[Key, ...] = (
    Key(
        "controller.quota.window.num",
        INT,
        "11",
        AtLeast(1),
        doc="Windows of controller_mutation_rate: so many times their size can be used at once.",
        effect=True,
        read_only=True,
    ),
    Key(
        "controller.quota.window.size.seconds",
        INT,
        "1",
        AtLeast(1),
        doc="Size of a window of controller_mutation_rate.",
        effect=True,
        read_only=True,
    ),
    Key(
        "quota.window.num",
        INT,
        "11",
        AtLeast(1),
        doc="Windows over which clients' rates are measured.",
        effect=True,
        read_only=True,
    ),
    Key(
        "quota.window.size.seconds",
        INT,
        "1",
        AtLeast(1),
        doc="Size of a window; also how long a client waits at most for request_percentage and for connections.",
        effect=True,
        read_only=True,
    ),
)
