"""The keys of the input records. A record is a version of its key; its number is the number of the version."""

PARTITIONS = 3
"""Number of partitions of the input topic. Record `n` is in partition `n % PARTITIONS`."""
DISTANCES = (0, 0, 100, 1000)
"""Each group of four records of a partition consists of the first version of a new key, a further version of this key,
and versions of the keys that the groups 100 and 1000 records before began with. A group that has no such group before
it has further new keys instead, with only one version.

A micro-batch has at most 100 records of a partition. So it has several versions of one key, between which `order_by`
decides. It has versions of keys of the micro-batch before, so an old micro-batch that is written again leaves an old
version. And the last record of each group is the last version of its key, so a micro-batch that is lost is found."""


def key_of(number: int) -> int:
    """Return the key of a record: the number of the first record with this key. All of them are in one partition, so
    that the query gets a greater version of a key later than a smaller one, or in the same micro-batch.
    """
    position, partition = divmod(number, PARTITIONS)
    place = position % len(DISTANCES)
    first = position - place - DISTANCES[place]
    return first * PARTITIONS + partition if first >= 0 else number


def last_versions(count: int) -> dict[int, int]:
    """Return each key of the first `count` records, with its last version."""
    return {key_of(number): number for number in range(count)}
