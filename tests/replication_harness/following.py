"""Partitions follow the metadata as in a broker: roles first, then files."""

from tidelog.metadata.image import MetadataImage
from tidelog.replication.partitions import Partitions


async def follow(partitions: Partitions, old: MetadataImage, new: MetadataImage) -> None:
    partitions.reconciler.change_roles(old, new)
    await partitions.reconciler.apply(old, new)
