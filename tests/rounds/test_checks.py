"""The checks of the rounds find what they look for: each one is given something wrong."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rounds_harness import checks
from rounds_harness.checks import LogReader, check_deliveries, check_log_lines
from rounds_harness.faults import DISK_ERRORS, FAULTS, possible
from rounds_harness.ledger import GroupLedger, Ledger
from rounds_harness.program import fault_of, parsed, table

KEY = b"writer-1-0-0"
PLAIN = b"writer-plain-0-0"


def log_of(*records: tuple[bytes, bytes], first: int = 0) -> Any:
    """Return a consumer that reads these records, whose offsets follow each other, from partition 0."""
    messages = [
        SimpleNamespace(
            error=lambda: None,
            partition=lambda: 0,
            offset=lambda offset=offset: offset,
            key=lambda key=key: key,
            value=lambda value=value: value,
        )
        for offset, (key, value) in enumerate(records, first)
    ]
    ends = {0: first + len(records)}
    return SimpleNamespace(
        get_watermark_offsets=lambda partition, _timeout: (0, ends.get(partition.partition, 0)),
        assign=lambda _partitions: None,
        unassign=lambda: None,
        consume=lambda _count, _timeout: [messages.pop(0)] if messages else [],
    )


def violations_of(consumer: Any, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(checks, "Consumer", lambda _settings, logger: consumer)
    brokers = cast("Any", SimpleNamespace(client_settings=lambda **settings: settings))
    return LogReader(brokers, ledger, ["writer-1"]).read_on(0.2)


def acknowledged(*records: tuple[bytes, bytes]) -> Ledger:
    ledger = Ledger()
    for offset, (key, value) in enumerate(records):
        ledger.acknowledge(0, offset, key, value)
    return ledger


def test_a_log_with_everything_has_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(KEY, b"0"), (KEY, b"1"), (PLAIN, b"0"), (KEY, b"2")]
    assert violations_of(log_of(*records), acknowledged(*records), monkeypatch) == []
    longer = log_of(*records, (KEY, b"3"))  # written, and its acknowledgement was lost
    assert violations_of(longer, acknowledged(*records), monkeypatch) == []


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([(KEY, b"0")], "lost: 0@1 was acknowledged, the log ends at 1"),
        ([(KEY, b"0"), (PLAIN, b"1")], "lost: 0@1 was acknowledged for"),
        ([(KEY, b"0"), (KEY, b"1"), (KEY, b"1")], "duplicate: 0@2"),
        ([(KEY, b"0"), (KEY, b"1"), (KEY, b"0")], "order: 0@2"),
        ([(KEY, b"0"), (KEY, b"1"), (KEY, b"3")], "order: 0@2"),
    ],
)
def test_violations_of_the_log_are_found(
    records: list[tuple[bytes, bytes]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = acknowledged((KEY, b"0"), (KEY, b"1"))
    assert violations_of(log_of(*records), ledger, monkeypatch)[0].startswith(message)


def test_repetitions_in_a_new_epoch_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(KEY, b"0"), (KEY, b"1"), (KEY, b"0"), (KEY, b"1"), (KEY, b"2")]
    assert len(violations_of(log_of(*records), acknowledged(), monkeypatch)) == 2
    monkeypatch.setattr(checks, "Consumer", lambda _settings, logger: log_of(*records, (KEY, b"4")))
    reader = LogReader(cast("Any", SimpleNamespace(client_settings=dict)), acknowledged(), ["writer-1"])
    assert len(reader.read_on(0.2, ["writer-1"])) == 1, "what is missing is a violation all the same"
    assert reader.repeated_in_epochs == 2


def test_repetitions_without_idempotence_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = log_of((PLAIN, b"0"), (PLAIN, b"2"), (PLAIN, b"1"), (PLAIN, b"2"))
    monkeypatch.setattr(checks, "Consumer", lambda _settings, logger: consumer)
    reader = LogReader(cast("Any", SimpleNamespace(client_settings=dict)), acknowledged(), ["writer-1"])
    assert reader.read_on(0.2) == []
    assert reader.repeated == [(PLAIN, 2)]


def test_records_acknowledged_without_an_offset_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = acknowledged((KEY, b"0"))
    ledger.acknowledge(0, None, KEY, b"1")
    assert violations_of(log_of((KEY, b"0"), (KEY, b"1")), ledger, monkeypatch) == []
    found = violations_of(log_of((KEY, b"0")), ledger, monkeypatch)
    assert [text.partition(":")[0] for text in found] == ["lost"]


def test_gaps_of_the_log_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = violations_of(log_of((KEY, b"0"), first=1), acknowledged(), monkeypatch)
    assert found == ["gap: 0@1 follows 0@-1"]


def test_an_offset_is_acknowledged_for_one_record_only() -> None:
    ledger = acknowledged((KEY, b"0"))
    ledger.acknowledge(0, 0, KEY, b"0")
    assert not ledger.contradictions
    ledger.acknowledge(0, 0, KEY, b"1")
    assert len(ledger.contradictions) == 1


def test_members_start_between_acknowledged_and_tried_commits() -> None:
    group = GroupLedger("g")
    group.attempt({0: 20})
    group.commit({0: 10})
    floor = group.floor()[0]
    group.check_start(0, 10, floor)
    group.check_start(0, 20, floor)
    assert group.violations == []
    group.check_start(0, 9, floor)
    group.check_start(0, 21, floor)
    assert [text.partition("read from ")[2][:2] for text in group.violations] == ["9,", "21"]


def test_records_that_a_group_has_not_received_are_found() -> None:
    ledger = acknowledged((KEY, b"0"), (KEY, b"1"))
    group = ledger.groups["g"] = GroupLedger("g")
    group.delivered[0] = {0}
    assert len(check_deliveries(ledger, 0.1)) == 1
    group.delivered[0].add(1)
    assert check_deliveries(ledger, 0.1) == []


def test_commits_that_are_lost_or_return_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets: dict[str, dict[int, int]] = {}
    monkeypatch.setattr(checks, "committed", lambda _brokers, group: offsets[group])
    ledger = Ledger()
    group = ledger.groups["g"] = GroupLedger("g")
    group.attempt({0: 20})
    group.commit({0: 10})
    rest = dict.fromkeys(range(1, 6), -1001)
    for offset, count in ((9, 1), (10, 0), (20, 0), (21, 1), (-1001, 1)):
        offsets["g"] = {0: offset} | rest
        assert len(checks.check_commits(cast("Any", None), ledger)) == count
    marks = checks.Marks(cast("Any", None))
    marks._kept["kept-1"], marks._deleted[:] = 1, ["deleted-1"]
    offsets |= {"kept-1": {0: 1}, "deleted-1": {0: -1001}}
    assert marks.check() == []
    offsets |= {"kept-1": {0: -1001}, "deleted-1": {0: 1}}
    assert [text.partition(":")[0] for text in marks.check()] == ["lost", "resurrected"]


def test_unexpected_log_lines_are_found() -> None:
    stamp = "2026-11-29T10:23:36.791Z"
    usual = (
        f"{stamp} INFO    tidelog.broker started\n{stamp} WARNING tidelog.metadata broker fenced, its lease has ended"
    )
    full = f"{stamp} ERROR   tidelog.directory appends refused path=/data"
    failed = f"{stamp} WARNING tidelog.runtime task failed error=ValueError"
    assert check_log_lines(usual, None) == []
    assert check_log_lines(full, re.compile("appends refused")) == []
    assert check_log_lines(f"{usual}\n{full}", None) == [full]
    assert check_log_lines(failed, re.compile(".*")) == [failed]
    assert check_log_lines("Traceback (most recent call last):", None) == [
        "not a line of the log: Traceback (most recent call last):"
    ]


def test_the_lines_are_those_of_the_documents() -> None:
    text = (Path(__file__).parents[2] / "docs/log-lines.md").read_text()
    section = text.partition("## A fault in Tidelog")[2].partition("\n## ")[0]
    faults = [
        line for row in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE) for line in re.findall("`(.+?)`", row)
    ]
    assert len(faults) > 10
    assert [line for line in faults if not checks.FAULTS_OF_TIDELOG.match(line)] == []
    patterns = f"{checks.FAULTS_OF_TIDELOG.pattern}|{DISK_ERRORS.pattern}|{checks.LEASE_LOST}"
    assert [line for line in patterns.split("|") if f"`{line}" not in text] == []


def test_replicas_that_differ_are_found(tmp_path: Path) -> None:
    brokers = {number: SimpleNamespace(data=tmp_path / str(number)) for number in (1, 2, 3)}
    for broker in brokers.values():
        (broker.data / "orders-0").mkdir(parents=True)
        (broker.data / "orders-0/00.log").write_bytes(b"same")
    assert checks.check_replicas(cast("Any", brokers), 0) == []
    (brokers[2].data / "orders-0/00.log").write_bytes(b"sane")
    assert checks.check_replicas(cast("Any", brokers), 0)[0].startswith("replicas: orders-0 differs from byte 2 on")


def test_unavailable_time_is_the_longest_pause_of_a_partition() -> None:
    ledger = Ledger()
    ledger.acknowledged_s[0] = [1.0, 2.0, 5.0, 6.0]
    ledger.acknowledged_s[1] = [1.0, 9.0]
    assert ledger.longest_gaps_s(1.5, 6.5) == {0: 3.0, 1: 5.0}


@pytest.mark.parametrize("kind", ["sqlite", "etcd", "zookeeper"])
def test_each_fault_has_its_round(kind: str) -> None:
    faults, skipped = possible(kind, {"network", "disks"}, "")
    assert {fault.name for fault in faults} | set(skipped) == {fault.name for fault in FAULTS}
    drawn = [fault_of(number, 7, faults).name for number in range(1, len(faults) + 1)]
    assert sorted(drawn) == sorted(fault.name for fault in faults)
    assert drawn != [fault_of(number, 8, faults).name for number in range(1, len(faults) + 1)]
    alone, skipped = possible(kind, set(), "no namespaces")
    assert {fault.name for fault in alone} < {fault.name for fault in faults}
    assert skipped["isolate"] == skipped["disk-full"] == "no namespaces"


def test_the_program_refuses_unknown_faults() -> None:
    with pytest.raises(SystemExit):
        parsed(["--fault", "earthquake"])
    assert table([]).count("\n") == 1
