"""Distinguish Tidelog's data directories from Kafka's, for `tidelog log verify`.

Before Tidelog deletes the first files of a log, it persists the new log start offset; Kafka does not. A gap before
a log's first segment is therefore damage only in Tidelog's directories. Only one data directory of a broker contains
the metadata store. The broker's other directories have the same cluster and node id in their `meta.properties`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.log.checkpoints import META_PROPERTIES, read_properties
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import METADATA_STORE, METADATA_STORE_MARK

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk


class TidelogDirectories:
    """The data directories that are known to belong to Tidelog brokers."""

    def __init__(self, disk: "Disk", paths: Iterable[str] = ()) -> None:
        """Each path is a data directory, or a file or directory in a data directory. The data directories are searched
        for the identities of brokers.
        """
        self._disk = disk
        self._brokers: set[tuple[str, str]] = set()
        """Cluster id and node id of each broker whose metadata store, or the file with the store's address, is in one
        of the directories."""
        for path in paths:
            for directory in (path, path.rpartition("/")[0]):
                identity = self._identity(directory)
                if identity is not None and self._has_metadata(directory):
                    self._brokers.add(identity)

    def __contains__(self, directory: str) -> bool:
        """Whether `directory` belongs to a Tidelog broker: it contains the broker's metadata store or the file with the
        store's address, or its cluster id and node id are those of one of `_brokers`.
        """
        return self._has_metadata(directory) or (bool(self._brokers) and self._identity(directory) in self._brokers)

    def _has_metadata(self, directory: str) -> bool:
        return any(self._disk.exists(f"{directory}/{name}") for name in (METADATA_STORE, METADATA_STORE_MARK))

    def _identity(self, directory: str) -> tuple[str, str] | None:
        """Return cluster id and node id; None if the directory does not contain both, or they cannot be read."""
        path = f"{directory}/{META_PROPERTIES}"
        try:
            properties = read_properties(self._disk.read(path), path)
        except (OSError, CorruptLog):
            return None
        cluster_id, node_id = properties.get("cluster.id"), properties.get("node.id")
        return (cluster_id, node_id) if cluster_id and node_id else None
