"""Log the result of a broker's start and the settings without effect. After a crash, operators read these lines
first.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.log.directories import DataDirectories
    from tidelog.replication.partitions import Partitions

logger = logging.getLogger("tidelog.broker")


def directory_state(directories: "DataDirectories", *, is_new: bool) -> str:
    """Return the state of the directories after the last stop of a broker: "clean", "unclean", or "new" if no broker
    has used them.
    """
    if is_new:
        return "new"
    return "clean" if directories.clean else "unclean"


def log_start(config: "BrokerConfig", cluster_id: str, state: str, partitions: "Partitions", seconds: float) -> None:
    """Log the result of the start in one line. `state` is the result of `directory_state`."""
    reports = [partition.log.recovery for partition in partitions]
    logger.info(
        "started cluster=%s node=%d directory=%s partitions=%d offline=%d scanned_bytes=%d truncated_bytes=%d "
        "seconds=%.3f",
        cluster_id,
        config.node_id,
        state,
        partitions.count,
        partitions.offline_count,
        sum(report.scanned_bytes for report in reports),
        sum(report.truncated_bytes for report in reports),
        seconds,
    )


def warn_of_settings(config: "BrokerConfig") -> None:
    """Write a line for each setting or listener that was configured and has no effect."""
    for text in config.controller_listeners:
        logger.info("controller listener not opened listener=%s", text)
    for name, place, reason in config.ignored:
        logger.warning("unknown setting ignored name=%s place=%s reason=%s", name, place, reason)
    for name in config.settings_without_effect():
        logger.warning("setting has no effect yet name=%s", name)
