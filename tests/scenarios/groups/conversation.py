"""Group conversations as reviewed text: requests at virtual times, and the replies, each with the time of its
arrival.

    config group.initial.rebalance.delay.ms=300
    at 0
    A join g v=5 session=1000
        0 A join MEMBER_ID_REQUIRED member=A.1
    A join g v=5 session=1000 member=A.1
    at 300
        300 A join NONE generation=1 leader=A.1 ...

A line without indentation is a request of the client whose name it begins with; an indented line is a reply. Member
ids are random, so a transcript shows them as `NAME.n`: NAME is the client id or the group instance id at the
beginning of the member id, and n counts the member ids with this name in the order of their appearance. `X log
GROUP` shows the records that the broker wrote.

A conversation can be run with any `Broker`: Tidelog's handlers on virtual time, or a live Kafka
(`against_kafka.py`).
"""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Protocol

from tidelog.coordinator.consumer.records import ConsumerRecord
from tidelog.coordinator.group.records import OffsetRecord, decode_record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.group_records import GroupMetadataValue, OffsetCommitValue

TOPICS = {"t": 3, "u": 1}
"""Topics that every conversation may use, each with its number of partitions."""
SLOT_MS = 100
"""Times of replies are rounded to multiples of this number. A reply that arrives immediately has the time of the
last `at`."""

Fields = dict[str, Any]
RANDOM_PART = re.compile(r"^(.*)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")


class Broker(Protocol):
    """The broker of a conversation."""

    def topic_id(self, name: str) -> bytes: ...

    def send(self, client: str, api: str, version: int, fields: Fields, reply: Callable[[Any], None]) -> None:
        """Send one request on the client's own connection; `reply` is called with the response when it comes."""

    def settle(self, complete: Callable[[], bool]) -> None:
        """Wait for the replies that the broker sends immediately. `complete` returns whether all replies of the
        transcript have arrived.
        """

    def advance_to(self, time_ms: int) -> None:
        """Wait until `time_ms` after the begin of the conversation."""

    def elapsed_ms(self) -> int: ...

    def began_wall_ms(self) -> int:
        """Return the time of the wall clock at the begin of the conversation, in ms."""

    def records(self, group_id: str) -> list[tuple[bytes, bytes | None]]:
        """Return the key and the value of every record in the group's partition of `__consumer_offsets`."""


LATEST = {
    "join": 9, "sync": 5, "heartbeat": 4, "leave": 5, "commit": 9, "fetch": 9, "list": 5, "describe": 6,
    "beat": 1, "show": 1, "delete": 2, "forget": 0,
}  # fmt: skip
API = {
    "join": "JoinGroup",
    "sync": "SyncGroup",
    "heartbeat": "Heartbeat",
    "leave": "LeaveGroup",
    "commit": "OffsetCommit",
    "fetch": "OffsetFetch",
    "list": "ListGroups",
    "describe": "DescribeGroups",
    "beat": "ConsumerGroupHeartbeat",
    "show": "ConsumerGroupDescribe",
    "delete": "DeleteGroups",
    "forget": "OffsetDelete",
}


class Conversation:
    """One run of a transcript's requests. `lines` is the transcript with the replies that arrived."""

    def __init__(self, broker: Broker, *, group_suffix: str = "") -> None:
        self.broker = broker
        self.lines: list[str] = []
        self._suffix = group_suffix
        self._at_ms: int | None = 0
        self._labels: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def run(self, text: str) -> str:
        """Send the requests of `text`, whose replies are ignored. Return the transcript with the replies that
        arrived.
        """
        given = text.splitlines()
        for place, line in enumerate(given):
            if line.startswith(" "):
                continue
            self.lines.append(line)
            expected = sum(1 for _ in takewhile(lambda reply: reply.startswith(" "), given[place + 1 :]))
            words = line.split()
            if not words or line.startswith("#") or words[0] == "config":
                continue
            begin = len(self.lines)
            if words[0] == "at":
                self._at_ms = None
                self.broker.advance_to(int(words[1]))
                self._at_ms = int(words[1])
            elif words[1] == "log":
                self.lines += [f"    {formatted}" for formatted in self._log(words[2])]
                continue
            else:
                self._request(words[0], words[1], words[2:])
                self.broker.settle(lambda: len(self.lines) >= begin + expected)  # noqa: B023
            # Replies that arrive at one moment on several connections have no defined order.
            self.lines[begin:] = sorted(self.lines[begin:], key=lambda line: (int(line.split()[0]), line))
        return "\n".join(self.lines) + "\n"

    # Requests

    def _request(self, client: str, verb: str, words: list[str]) -> None:
        positional = [word for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        version = int(named.pop("v", LATEST[verb]))
        fields: Fields = getattr(self, f"_{verb}")(version, positional, named)
        assert not named, f"unknown words {sorted(named)} in a {verb}"

        def reply(response: Any) -> None:
            slot = self._at_ms
            if slot is None:
                slot = (self.broker.elapsed_ms() + SLOT_MS // 2) // SLOT_MS * SLOT_MS
            formatted = getattr(self, f"_format_{verb}")(version, response)
            for line in formatted.splitlines():
                self.lines.append(f"    {slot} {client} {verb} {line}")

        self.broker.send(client, API[verb], version, fields, reply)

    def _join(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {
            "group_id": self._group(words[0]),
            "session_timeout_ms": int(named.pop("session", 3000)),
            "member_id": self._member_id(named.pop("member", "")),
            "protocol_type": named.pop("type", "consumer"),
            "protocols": [
                {"name": name, "metadata": metadata.encode()}
                for name, metadata in _pairs(named.pop("protocols", "range:-"))
            ],
        }
        if version >= 1:
            fields["rebalance_timeout_ms"] = int(named.pop("rebalance", 3000))
        if version >= 5:
            fields["group_instance_id"] = named.pop("instance", None)
        if version >= 8:
            fields["reason"] = named.pop("reason", None)
        return fields

    def _sync(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {
            "group_id": self._group(words[0]),
            "generation_id": int(named.pop("generation")),
            "member_id": self._member_id(named.pop("member")),
            "assignments": [
                {"member_id": self._member_id(member), "assignment": assignment.encode()}
                for member, assignment in _pairs(named.pop("assign", ""))
            ],
        }
        if version >= 3:
            fields["group_instance_id"] = named.pop("instance", None)
        if version >= 5:
            fields["protocol_type"] = _nullable(named.pop("type", "consumer"))
            fields["protocol_name"] = _nullable(named.pop("name", "range"))
        return fields

    def _heartbeat(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {
            "group_id": self._group(words[0]),
            "generation_id": int(named.pop("generation")),
            "member_id": self._member_id(named.pop("member")),
        }
        if version >= 3:
            fields["group_instance_id"] = named.pop("instance", None)
        return fields

    def _leave(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {"group_id": self._group(words[0])}
        if version < 3:
            fields["member_id"] = self._member_id(named.pop("member"))
            return fields
        fields["members"] = []
        for member in filter(None, named.pop("members").split(",")):
            label, _, instance = member.partition("/")
            fields["members"].append({"member_id": self._member_id(label), "group_instance_id": instance or None})
        return fields

    def _commit(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {
            "group_id": self._group(words[0]),
            "generation_id_or_member_epoch": int(named.pop("generation", -1)),
            "member_id": self._member_id(named.pop("member", "")),
            "topics": [],
        }
        if version >= 7:
            fields["group_instance_id"] = named.pop("instance", None)
        if version < 5:
            fields["retention_time_ms"] = int(named.pop("retention", -1))
        for key in list(named):
            topic, _, partition = key.rpartition("-")
            offset, _, metadata = named.pop(key).partition(":")
            value: Fields = {
                "partition_index": int(partition),
                "committed_offset": int(offset.partition("@")[0]),
                "committed_metadata": metadata,
            }
            if version >= 6:
                value["committed_leader_epoch"] = int(offset.partition("@")[2] or -1)
            fields["topics"].append({**self._topic(version, topic), "partitions": [value]})
        return fields

    def _fetch(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        topics: list[Fields] | None = None
        if words[1:] != ["all"]:
            topics = []
            for word in words[1:]:
                topic, _, partition = word.rpartition("-")
                topics.append({**self._topic(version, topic), "partition_indexes": [int(partition)]})
        if version < 8:
            return {"group_id": self._group(words[0]), "topics": topics}
        return {"groups": [{"group_id": self._group(group), "topics": topics} for group in words[0].split(",")]}

    def _list(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {}
        if version >= 4:
            fields["states_filter"] = list(filter(None, named.pop("states", "").split(",")))
        if version >= 5:
            fields["types_filter"] = list(filter(None, named.pop("types", "").split(",")))
        return fields

    def _describe(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {"groups": [self._group(word) for word in words]}
        if version >= 3:
            fields["include_authorized_operations"] = named.pop("operations", "no") == "yes"
        return fields

    def _beat(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        fields: Fields = {
            "group_id": self._group(words[0]),
            "member_id": named.pop("member"),
            "member_epoch": int(named.pop("epoch")),
            "instance_id": named.pop("instance", None),
            "rack_id": named.pop("rack", None),
            "rebalance_timeout_ms": int(named.pop("rebalance", -1)),
            "server_assignor": named.pop("assignor", None),
        }
        topics, owned = named.pop("topics", None), named.pop("owned", None)
        fields["subscribed_topic_names"] = None if topics is None else _listed(topics)
        if version >= 1:
            fields["subscribed_topic_regex"] = named.pop("regex", None)
        if owned is not None:
            by_topic: dict[str, list[int]] = {}
            for part in _listed(owned):
                topic, _, partition = part.rpartition("-")
                by_topic.setdefault(topic, []).append(int(partition))
            fields["topic_partitions"] = [
                {"topic_id": self.broker.topic_id(topic), "partitions": numbers} for topic, numbers in by_topic.items()
            ]
        return fields

    def _show(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        return {"group_ids": [self._group(word) for word in words], "include_authorized_operations": False}

    def _delete(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        return {"groups_names": [self._group(word) for word in words]}

    def _forget(self, version: int, words: list[str], named: dict[str, str]) -> Fields:
        topics = []
        for word in words[1:]:
            topic, _, partition = word.rpartition("-")
            topics.append({"name": topic, "partitions": [{"partition_index": int(partition)}]})
        return {"group_id": self._group(words[0]), "topics": topics}

    # Replies

    def _format_delete(self, version: int, reply: Any) -> str:
        formatted = [f"{self._group_name(result.group_id)}={_error(result.error_code)}" for result in reply.results]
        return " ".join(sorted(formatted)) or "nothing"  # Kafka's order is that of a hash map

    def _format_forget(self, version: int, reply: Any) -> str:
        words = [_error(reply.error_code)]
        for topic in reply.topics:
            words += [f"{topic.name}-{part.partition_index}={_error(part.error_code)}" for part in topic.partitions]
        return " ".join(words)

    def _format_beat(self, version: int, reply: Any) -> str:
        words = [_error(reply.error_code)]
        if not reply.error_code:
            assigned = "null" if reply.assignment is None else self._parts(reply.assignment.topic_partitions)
            words += [f"member={reply.member_id}", f"epoch={reply.member_epoch}"]
            words += [f"interval={reply.heartbeat_interval_ms}", f"assigned={assigned}"]
        return " ".join(words)

    def _format_show(self, version: int, reply: Any) -> str:
        lines = []
        for group in reply.groups:
            words = [self._group_name(group.group_id), _error(group.error_code), f"state={group.group_state}"]
            words += [f"epoch={group.group_epoch}", f"target={group.assignment_epoch}"]
            words.append(f"assignor={_text(group.assignor_name)}")
            for member in sorted(group.members, key=lambda member: str(member.member_id)):
                formatted = f"{self._label(member.member_id)}/{_text(member.instance_id)}({member.member_epoch}"
                formatted += f" {self._parts(member.assignment.topic_partitions)}"
                formatted += f" {self._parts(member.target_assignment.topic_partitions)}"
                words.append(f"{formatted} type={member.member_type})" if version >= 1 else f"{formatted})")
            lines.append(" ".join(words))
        return "\n".join(lines)

    def _parts(self, topics: Any) -> str:
        return ",".join(sorted(f"{self._topic_name(10, t)}-{p}" for t in topics for p in t.partitions)) or "-"

    def _format_join(self, version: int, reply: Any) -> str:
        words = [_error(reply.error_code)]
        words += [f"generation={reply.generation_id}", f"protocol={_text(reply.protocol_name)}"]
        if version >= 7:
            words.append(f"type={_text(reply.protocol_type)}")
        words += [f"leader={self._label(reply.leader)}", f"member={self._label(reply.member_id)}"]
        if version >= 9:
            words.append(f"skip={_yes(reply.skip_assignment)}")
        members = []
        for member in reply.members:
            instance = f"/{member.group_instance_id}" if version >= 5 and member.group_instance_id is not None else ""
            members.append(f"{self._label(member.member_id)}{instance}:{bytes(member.metadata).decode()}")
        words.append(f"members={','.join(sorted(members)) or '-'}")
        return " ".join(words)

    def _format_sync(self, version: int, reply: Any) -> str:
        words = [_error(reply.error_code)]
        if version >= 5:
            words += [f"type={_text(reply.protocol_type)}", f"name={_text(reply.protocol_name)}"]
        return " ".join([*words, f"assignment={bytes(reply.assignment).decode() or '-'}"])

    def _format_heartbeat(self, version: int, reply: Any) -> str:
        return _error(reply.error_code)

    def _format_leave(self, version: int, reply: Any) -> str:
        words = [_error(reply.error_code)]
        if version >= 3:
            for member in reply.members:
                words.append(
                    f"{self._label(member.member_id)}/{_text(member.group_instance_id)}={_error(member.error_code)}"
                )
        return " ".join(words)

    def _format_commit(self, version: int, reply: Any) -> str:
        words = []
        for topic in reply.topics:
            for partition in topic.partitions:
                name = self._topic_name(version, topic)
                words.append(f"{name}-{partition.partition_index}={_error(partition.error_code)}")
        return " ".join(words) or "nothing"

    def _format_fetch(self, version: int, reply: Any) -> str:
        lines = []
        for group in reply.groups if version >= 8 else [reply]:
            words = [self._group_name(group.group_id)] if version >= 8 else []
            if version >= 2:
                words.append(_error(group.error_code))
            offsets = []
            for topic in group.topics:
                for partition in topic.partitions:
                    formatted = (
                        f"{self._topic_name(version, topic)}-{partition.partition_index}={partition.committed_offset}"
                    )
                    if version >= 5:
                        formatted += f"@{partition.committed_leader_epoch}"
                    formatted += f":{_text(partition.metadata)}"
                    if partition.error_code:
                        formatted += f":{_error(partition.error_code)}"
                    offsets.append(formatted)
            lines.append(" ".join([*words, *sorted(offsets)]))
        return "\n".join(lines)

    def _format_list(self, version: int, reply: Any) -> str:
        groups = []
        for group in reply.groups:
            if not group.group_id.endswith(self._suffix):
                continue  # of another conversation with the same broker
            formatted = f"{self._group_name(group.group_id)}:{_text(group.protocol_type)}"
            if version >= 4:
                formatted += f":{group.group_state}"
            if version >= 5:
                formatted += f":{group.group_type}"
            groups.append(formatted)
        return " ".join([_error(reply.error_code), *sorted(groups)])

    def _format_describe(self, version: int, reply: Any) -> str:
        lines = []
        for group in sorted(reply.groups, key=lambda group: group.group_id):  # Kafka's order is that of a hash map
            words = [self._group_name(group.group_id), _error(group.error_code)]
            if version >= 6:
                message = None if group.error_message is None else group.error_message.replace(self._suffix, "")
                words.append(f"message={_text(message).replace(' ', '_')}")
            words.append(f"state={group.group_state}")
            words += [f"type={_text(group.protocol_type)}", f"data={_text(group.protocol_data)}"]
            if version >= 3:
                words.append(f"operations={group.authorized_operations}")
            members = []
            for member in group.members:
                formatted = self._label(member.member_id)
                if version >= 4:
                    formatted += f"/{_text(member.group_instance_id)}"
                formatted += f"({member.client_id}@{member.client_host}"
                formatted += f" {bytes(member.member_metadata).decode() or '-'}"
                formatted += f" {bytes(member.member_assignment).decode() or '-'})"
                members.append(formatted)
            lines.append(" ".join([*words, *sorted(members)]))
        return "\n".join(lines)

    # Records

    def _log(self, name: str) -> list[str]:
        """Return the lines that show the records of one group, with the versions in which they are written."""
        group_id = self._group(name)
        formatted = []
        for key, value in self.broker.records(group_id):
            record = decode_record(key, value)
            assert record is not None
            if record.group != group_id:
                continue
            version = "tombstone" if value is None else f"v{int.from_bytes(value[:2], 'big')}"
            if isinstance(record, ConsumerRecord):
                formatted.append(f"consumer {record.kind} {record.name or '-'} {version}")
            elif isinstance(record, OffsetRecord):
                formatted.append(
                    f"offset {record.topic}-{record.partition} {version}{self._format_offset(record.value)}"
                )
            else:
                formatted.append(f"group {version}{self._format_metadata(record.value)}")
            assert record.encode() == (key, value), "written otherwise than it was read"
        return formatted

    def _format_offset(self, value: OffsetCommitValue | None) -> str:
        if value is None:
            return ""
        topic = next((name for name in TOPICS if self.broker.topic_id(name) == value.topic_id), "-")
        formatted = (
            f" {value.offset}@{value.leader_epoch}:{value.metadata or '-'} at={self._since(value.commit_timestamp)}"
        )
        if value.expire_timestamp >= 0:
            formatted += f" expires={self._since(value.expire_timestamp)}"
        return f"{formatted} topic={topic}"

    def _format_metadata(self, value: GroupMetadataValue | None) -> str:
        if value is None:
            return ""
        members = [
            f"{self._label(m.member_id)}/{_text(m.group_instance_id)}({m.client_id}@{m.client_host} "
            f"{m.rebalance_timeout} {m.session_timeout} {m.subscription.decode()} {m.assignment.decode() or '-'})"
            for m in value.members
        ]
        leader = "null" if value.leader is None else self._label(value.leader)
        formatted = f" type={_text(value.protocol_type)} generation={value.generation} protocol={_text(value.protocol)}"
        formatted += f" leader={leader} since={self._since(value.current_state_timestamp)}"
        return " ".join([formatted, *sorted(members)])

    def _since(self, wall_ms: int) -> int:
        return (wall_ms - self.broker.began_wall_ms() + SLOT_MS // 2) // SLOT_MS * SLOT_MS

    # Names

    def _group(self, name: str) -> str:
        return name + self._suffix

    def _group_name(self, group_id: str) -> str:
        return group_id.removesuffix(self._suffix)

    def _topic(self, version: int, name: str) -> Fields:
        return {"name": name} if version < 10 else {"topic_id": self.broker.topic_id(name)}

    def _topic_name(self, version: int, topic: Any) -> str:
        if version < 10:
            return str(topic.name)
        return next((name for name in TOPICS if self.broker.topic_id(name) == topic.topic_id), "unknown-id")

    def _label(self, member_id: str) -> str:
        found = RANDOM_PART.match(member_id)
        if found is None:
            return member_id or "-"
        if member_id not in self._labels:
            name = found.group(1)
            self._counts[name] = self._counts.get(name, 0) + 1
            self._labels[member_id] = f"{name}.{self._counts[name]}"
            self._ids[self._labels[member_id]] = member_id
        return self._labels[member_id]

    def _member_id(self, label: str) -> str:
        return "" if label == "-" else self._ids.get(label, label)


def _listed(text: str) -> list[str]:
    return [] if text in ("", "-") else text.split(",")


def settings_of(text: str) -> dict[str, str]:
    """Return the broker settings in the `config` lines of a transcript."""
    settings = {}
    for line in text.splitlines():
        if line.startswith("config "):
            name, _, value = line.removeprefix("config ").partition("=")
            settings[name] = value
    return settings


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for word in filter(None, text.split(",")):
        name, _, value = word.partition(":")
        pairs.append((name, value))
    return pairs


def _error(code: int) -> str:
    return ErrorCode(code).name


def _text(value: str | None) -> str:
    return "null" if value is None else value or "-"


def _nullable(text: str) -> str | None:
    return None if text == "null" else text


def _yes(value: bool) -> str:
    return "yes" if value else "no"
