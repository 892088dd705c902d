"""Broker settings that Apache Kafka once had and version 4 has no more: files of old clusters still name them.

From the differences between the settings of Kafka 2.x, 3.x and 4.x. Kafka 4 warns of them as of any unknown name.
"""

from collections.abc import Mapping

ZOOKEEPER = "zookeeper."
"""Everything that begins so."""

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
"""To what says the same now; empty for those that nothing replaces."""


def retired(name: str) -> str | None:
    """Why Kafka 4 does not know this setting, for people; None for one that it never had, or still has."""
    if name.startswith(ZOOKEEPER):
        return "there is no ZooKeeper any more"
    successor = RETIRED.get(name)
    if successor is None:
        return None
    return "Kafka 4 has it no more" + (f", use {successor}" if successor else "")
