"""`mirror()`: a pipeline that copies topics and consumer groups from one cluster to another.

Records keep their keys, values, headers, timestamps, partitions and order. Topics are created with the partitions and
settings of the source. Later changes of partitions and settings are copied too. The committed offsets of groups are
translated to offsets of the target, and committed there. Reading guide: this module, then `mirror_writer`,
`mirror_offsets` and `mirror_groups`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext, pipeline
from tidelog.pipelines.topics import task_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

EXCLUDE = r"__.*|mirror-offsets\..*"
"""Pattern of the topics that are not mirrored by default: internal topics, and topics where mirrors store offsets."""
OFFSETS_PER_TRIGGER = "1000000"
"""Default of maxOffsetsPerTrigger, the limit of offsets in a micro-batch. It also limits the work that is repeated
after a failure."""
READ_OPTIONS_REFUSED = {
    "assign": "set mirror(topics=...) instead",
    "includeheaders": "headers are always copied",
    "kafka.bootstrap.servers": "set mirror(source=...) instead",
    "kafka.isolation.level": "a mirror copies committed records only",
    "maxrecordsperpartition": "it would change the order of records",
    "minpartitions": "it would change the order of records",
    "startingoffsets": "set mirror(begin=...) instead",
    "startingoffsetsbytimestamp": "set mirror(begin=...) instead",
    "startingtimestamp": "set mirror(begin=...) instead",
    "subscribe": "set mirror(topics=...) instead",
    "subscribepattern": "set mirror(topics=...) instead",
}
"""Read options that a mirror sets itself or cannot accept, in lower case, each with the reason or the alternative."""
WRITE_OPTIONS = ("kafka.batch.size", "kafka.compression.type", "kafka.delivery.timeout.ms")
"""The write options that a mirror accepts."""


@dataclass(frozen=True)
class Mirror:
    """The declaration of a mirror: topics, groups, source and target. It is the Source and the Sink of its pipeline."""

    name: str
    source: str
    """HOST:PORT of the source's brokers, several separated by commas."""
    topics: str
    """Regular expression of Java, which must match the whole name of a topic."""
    target: str | None = None
    """HOST:PORT of the target's brokers. None stands for the brokers in `SinkContext.bootstrap`."""
    exclude: str = EXCLUDE
    groups: str | None = ".*"
    prefix: str = ""
    begin: str | int = "earliest"
    groups_every_s: float = 5.0
    replicas: int = -1
    settings_not_copied: tuple[str, ...] = ()
    read_options: Mapping[str, str] = field(default_factory=dict)
    write_options: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        return f"topics matching {self.topics} of {self.source}"

    @property
    def pattern(self) -> str:
        """The regular expression for option `subscribePattern`: `topics` without `exclude`.

        Topics with the prefix are excluded, too, because this mirror may have created them.
        """
        own_copies = rf"|\Q{self.prefix}\E.*" if self.prefix else ""
        return f"^(?!(?:{self.exclude}{own_copies})$)(?:{self.topics})$"

    def load(self, context: SourceContext) -> "DataFrame":
        from tidelog.pipelines.mirror_writer import starting_options

        reader = context.spark.readStream if context.is_streaming else context.spark.read
        options = {
            "maxOffsetsPerTrigger": OFFSETS_PER_TRIGGER,
            **task_limit(context.spark, self.read_options),
            **self.read_options,
            "kafka.bootstrap.servers": self.source,
            "kafka.isolation.level": "read_committed",
            "subscribePattern": self.pattern,
            "includeHeaders": "true",
        }
        if context.is_streaming:
            begin = self.begin if context.begin is None else context.begin
            is_new = context.begin is not None and not context.has_started
            options |= starting_options(self, self.target or context.bootstrap, begin, refuses_stored=is_new)
        else:
            options.pop("maxOffsetsPerTrigger")
        frame = reader.format("tidelog").options(**options).load()
        return frame if context.rows_max is None else frame.limit(context.rows_max)

    def open(self, context: SinkContext) -> Opened:
        from tidelog.pipelines.mirror_writer import MirrorWriter

        return MirrorWriter(self, context)


def mirror(
    name: str,
    *,
    source: str,
    topics: str | Sequence[str],
    target: str | None = None,
    exclude: str = EXCLUDE,
    groups: str | None = ".*",
    prefix: str = "",
    begin: str | int = "earliest",
    trigger: str = "5 seconds",
    groups_every_s: float = 5.0,
    replicas: int = -1,
    settings_not_copied: Sequence[str] = (),
    read_options: Mapping[str, str] | None = None,
    write_options: Mapping[str, str] | None = None,
) -> "Callable[[DataFrame], DataFrame]":
    """Declare a pipeline that copies topics from the cluster `source` to the cluster `target`, and return its function.

    `topics` is a list of names, or a regular expression of Java for whole names; names that match `exclude` are not
    copied. `groups` is a regular expression for the consumer groups whose committed offsets are copied, None for no
    group. `prefix` is added to the names of topics in the target. `begin` is where the first run begins: `earliest`,
    `latest` or a timestamp in milliseconds. `replicas` is the replication factor of new topics; -1 stands for the
    target's default.

    A mirror stores its offsets in the topic `mirror-offsets.NAME` of the target. If its checkpoint is lost, it
    continues from these offsets. Raises PipelineError if the arguments are not valid.
    """
    place = f"mirror {name}"
    if not isinstance(topics, str):
        if not topics:
            raise PipelineError(f"{place}: topics is an empty list: name at least one topic, or use a pattern")
        topics = "|".join(rf"\Q{topic}\E" for topic in topics)
    if prefix and not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", prefix):
        raise PipelineError(
            f"{place}: prefix {prefix!r} must have at most 100 characters, only ASCII letters, digits, dots, dashes and"
            " underscores"
        )
    if not (isinstance(begin, int) or begin in ("earliest", "latest")):
        raise PipelineError(f"{place}: begin is {begin!r}: it must be earliest, latest or a timestamp in milliseconds")
    if target is not None and not prefix and set(target.split(",")) & set(source.split(",")):
        raise PipelineError(f"{place}: source and target are the same cluster: set another target, or a prefix")
    _check_options(place, read_options or {}, write_options or {})
    declared = Mirror(
        name=name,
        source=source,
        topics=topics,
        target=target,
        exclude=exclude,
        groups=groups,
        prefix=prefix,
        begin=begin,
        groups_every_s=groups_every_s,
        replicas=replicas,
        settings_not_copied=tuple(settings_not_copied),
        read_options=dict(read_options or {}),
        write_options=dict(write_options or {}),
    )

    @pipeline(name=name, source=declared, sink=declared, trigger=trigger)
    def copied(records: "DataFrame") -> "DataFrame":
        return records

    return copied


def _check_options(place: str, read_options: Mapping[str, str], write_options: Mapping[str, str]) -> None:
    for option in read_options:
        if reason := READ_OPTIONS_REFUSED.get(option.lower()):
            raise PipelineError(f"{place}: read option {option} is not accepted: {reason}")
    for option in write_options:
        if option.lower() not in WRITE_OPTIONS:
            raise PipelineError(
                f"{place}: write option {option} is not accepted; these are accepted: {', '.join(WRITE_OPTIONS)}"
            )
