"""Broker settings that Apache Kafka had before version 4. Configuration files of old clusters still contain them.

The list was made from the differences between the settings of Kafka 2.x, 3.x and 4.x. Kafka 4 warns about these
settings in the same way as about any unknown name.
"""

from collections.abc import Mapping

ZOOKEEPER = "zookeeper."
"""Prefix of settings for ZooKeeper, all of which are retired."""

RETIRED: Mapping[str, str] = {
    "advertised.host.name": "advertised.listeners",
    "advertised.port": "advertised.listeners",
    "auto.include.jmx.reporter": "",
    "broker.id.generation.enable": "",
    "control.plane.listener.name": "",
    "delegation.token.master.key": "",
    "group.coordinator.new.enable": "",
    "host.name": "listeners",
    "inter.broker.protocol.version": "",
    "log.message.downconversion.enable": "",
    "log.message.format.version": "",
    "log.message.timestamp.difference.max.ms": (
        "log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
    ),
    "offsets.commit.required.acks": "",
    "password.encoder.cipher.algorithm": "",
    "password.encoder.iterations": "",
    "password.encoder.key.length": "",
    "password.encoder.keyfactory.algorithm": "",
    "password.encoder.old.secret": "",
    "password.encoder.secret": "",
    "port": "listeners",
    "quota.consumer.default": "",
    "quota.producer.default": "",
    "reserved.broker.max.id": "",
}
"""The settings that replace each retired setting; empty if no setting replaces it."""


def retirement_reason(name: str) -> str | None:
    """Return the reason why Kafka 4 no longer has this setting, as text for users; None if this module does not list
    the setting.
    """
    if name.startswith(ZOOKEEPER):
        return "Kafka 4 no longer uses ZooKeeper"
    successor = RETIRED.get(name)
    if successor is None:
        return None
    return "Kafka 4 no longer has it" + (f", use {successor}" if successor else "")
