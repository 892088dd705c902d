"""Broker settings of quotas: the windows over which rates are measured."""

from tidelog.config.key import AtLeast, Key, Type

INT = Type.INT

KEYS: tuple[Key, ...] = (
    Key(
        "controller.quota.window.num",
        INT,
        "11",
        AtLeast(1),
        doc="Number of windows of the quota controller_mutation_rate. After an idle time, a client can use the quota "
        "of all windows at once.",
        effect=True,
        read_only=True,
    ),
    Key(
        "controller.quota.window.size.seconds",
        INT,
        "1",
        AtLeast(1),
        doc="Length of one window of the quota controller_mutation_rate.",
        effect=True,
        read_only=True,
    ),
    Key(
        "quota.window.num",
        INT,
        "11",
        AtLeast(1),
        doc="Number of windows over which the rates of clients are measured.",
        effect=True,
        read_only=True,
    ),
    Key(
        "quota.window.size.seconds",
        INT,
        "1",
        AtLeast(1),
        doc="Length of one window. The quota request_percentage and limits on the rate of new connections cause no "
        "delay that is longer than one window.",
        effect=True,
        read_only=True,
    ),
)
