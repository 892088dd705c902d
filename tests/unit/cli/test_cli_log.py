"""`tidelog log dump` and `verify` on files of a broker, intact and damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tidelog.cli.log import entry_json, entry_text, group_similar, quote
from tidelog.cli.main import main
from tidelog.log.verify import Finding, VerifyReport
from tidelog.testing import Broker

SEGMENT = "00000000000000000000.log"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that took three records in two batches into `orders`."""
    data = tmp_path_factory.mktemp("log") / "data"
    with Broker(data=data) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"v1", key=b"k1", headers=[("h", b"1"), ("n", None)], timestamp=1767323045678)
        assert producer.flush(20) == 0
        producer.produce("orders", None, key=b"\xff", timestamp=1767323045679)
        producer.produce("orders", b"v3\n", timestamp=1767323045680)
        assert producer.flush(20) == 0
    return data


@pytest.fixture
def data(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in the current directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(written, tmp_path / "data")
    return Path("data")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_sound_files(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(data)]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("2 batches, 3 records: no damage\n")
    assert printed.err == ""


def test_a_flipped_byte_is_found_with_path_and_position(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "orders-0" / SEGMENT
    flip(path, path.stat().st_size - 1)
    assert main(["log", "verify", str(data)]) == 1
    damage, summary = capsys.readouterr().out.splitlines()
    assert damage.startswith(f"damage: {path} at ")
    assert "CRC" in damage
    assert summary.endswith(": 1 defect")


def test_findings_of_one_kind_are_one_line_with_their_number(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs = data / "orders-0" / SEGMENT
    found = [
        Finding(str(epochs), 8 * row, "damage", f"offset {row} is not in the batch at its indexed position")
        for row in range(9)
    ]
    other = Finding(str(epochs), 0, "note", "left by an interrupted deletion or cleaning")
    assert group_similar([*found[:5], other, *found[5:]]) == [(other, 0, 0), (found[0], 8, 64)]

    for name in ("a-stray", "b-stray"):
        (data / name).mkdir()
    flip(epochs, 70)
    assert main(["log", "verify", str(data)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) == 4


def test_directories_that_are_verified_together_are_known_by_the_one_with_the_metadata(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data, "disk2")
    Path("disk2/metadata.sqlite").unlink()
    is_tidelogs: list[bool] = []

    def verify(disk: Any, path: str, *, records: bool, tidelog_directories: Any) -> VerifyReport:
        is_tidelogs.append(str(Path("disk2").absolute()) in tidelog_directories)
        return VerifyReport()

    monkeypatch.setattr("tidelog.log.verify.verify", verify)
    assert main(["log", "verify", "disk2", "data"]) == 0
    assert main(["log", "verify", "disk2"]) == 0
    assert is_tidelogs == [True, True, False]


def test_several_paths(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data, "copy")
    flip(Path("copy") / "orders-0" / SEGMENT, 70)
    assert main(["log", "verify", "data", "copy/orders-0", "--json"]) == 1
    both = json.loads(capsys.readouterr().out)
    assert (both["records"], both["damaged"], len(both["findings"])) == (5, True, 1)
    assert main(["log", "verify", "data", "copy"]) == 1
    damage, summary = capsys.readouterr().out.splitlines()
    assert damage.startswith(f"damage: copy/orders-0/{SEGMENT} at 0: ")
    assert summary.endswith("4 batches, 5 records: 1 defect")
    for command in ("verify", "dump"):
        assert main(["log", command, "copy", "gone"]) == 1
        printed = capsys.readouterr()
        assert (printed.out, printed.err.endswith("gone: No such file or directory\n")) == ("", True)
    assert main(["log", "dump", f"data/orders-0/{SEGMENT}", "data/meta.properties"]) == 0
    printed = capsys.readouterr().out
    assert f"data/orders-0/{SEGMENT}:\n" in printed
    assert "data/meta.properties:\n" in printed


def test_what_waits_is_no_interruption(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "orders-0" / f"{SEGMENT}.deleted").touch()
    (data / "orders-1.0123456789abcdef-delete").mkdir()
    (data / "orders-2.0123456789abcdef-future").mkdir()
    assert main(["log", "verify", str(data)]) == 0
    *notes, _ = capsys.readouterr().out.splitlines()
    assert [note.partition(" at 0: ")[2].partition(":")[0] for note in notes] == [
        "a retired file",
        "a deleted or moved partition",
        "a partition that moves here from another data directory",
    ]


def test_notes_of_one_kind_are_one_line_for_a_directory_and_come_before_damage(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        (data / "orders-0" / f"{number:020d}.log.deleted").touch()
        (data / "orders-0" / f"{number:020d}.index.deleted").touch()
    flip(data / "orders-0" / SEGMENT, 70)
    (data / "orders-1.0123456789abcdef-delete").mkdir()
    assert main(["log", "verify", str(data)]) == 1
    retired, deleted, damage, _ = capsys.readouterr().out.splitlines()
    assert retired.startswith(f"note: {data}/orders-0/00000000000000000000.index.deleted at 0: a retired file: ")
    assert retired.endswith(" (and 5 more of this kind in the same directory)")
    assert deleted.startswith("note: ")
    assert damage.startswith("damage: ")


def test_findings_as_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(data / "orders-0" / SEGMENT, 70)
    assert main(["log", "verify", str(data), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["damaged"] is True
    (finding,) = document["findings"]
    assert finding["path"] == str((data / "orders-0" / SEGMENT).absolute())
    assert (finding["position"], finding["severity"]) == (0, "damage")


def test_a_dump_for_people(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "orders-0" / SEGMENT
    assert main(["log", "dump", str(path), "--records"]) == 0
    head, first, *records = capsys.readouterr().out.splitlines()
    assert head == f"{path}:"
    assert first.split() == [
        *("0", "batch", "size=79", "base_offset=0", "last_offset=0", "count=1", "leader_epoch=0"),
        *("base_timestamp=2026-01-02T03:04:05.678Z", "max_timestamp=2026-01-02T03:04:05.678Z"),
    ]
    assert [line.split(maxsplit=1)[1] for line in records if " record " in line] == [
        'offset=0 timestamp=2026-01-02T03:04:05.678Z key="k1" value="v1" headers=[h="1" n=null]',
        'offset=1 timestamp=2026-01-02T03:04:05.679Z key="\\xff" value=null',
        'offset=2 timestamp=2026-01-02T03:04:05.680Z key=null value="v3\\n"',
    ]


def test_a_dump_for_programs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(data / "orders-0"), "--records", "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    records = [entry for entry in entries if entry["kind"] == "record"]
    assert [(record["offset"], record["value"]) for record in records] == [(0, "v1"), (1, None), (2, "v3\n")]
    assert records[0]["headers"] == [{"key": "h", "value": "1"}, {"key": "n", "value": None}]
    assert records[1]["key_base64"] == "/w=="
    assert {"batch", "record", "partition"} <= {entry["kind"] for entry in entries}


def test_a_dump_meets_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "orders-0" / SEGMENT
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["log", "dump", str(path)]) == 1
    printed = capsys.readouterr()
    assert " damage  reason=" in printed.out.splitlines()[-1]
    assert printed.err == "Error: damage was found, see above; tidelog log verify finds all damage\n"


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_what_is_not_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nowhere"
    assert main(["log", command, str(path)]) == 1
    assert capsys.readouterr().err == f"Error: {path}: No such file or directory\n"


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_what_is_no_log(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "polkit-1").mkdir()
    (tmp_path / "polkit-1" / "rules").touch()
    (tmp_path / "passwd").touch()
    (tmp_path / "passwd.tmp").touch()
    for path in (tmp_path, tmp_path / "polkit-1", tmp_path / "passwd"):
        assert main(["log", command, str(path)]) == 1
        assert capsys.readouterr() == (
            "",
            f"Error: {path} is neither a log file, nor a partition's directory,"
            " nor a data directory of Tidelog or Kafka\n",
        )


@pytest.mark.parametrize("part", ["", "orders-0", f"orders-0/{SEGMENT}", "meta.properties"])
def test_what_is_a_log(part: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("dump", "verify"):
        assert main(["log", command, str(data / part)]) == 0
        assert capsys.readouterr().err == ""


def test_one_is_not_plural(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(data / "meta.properties")]) == 0
    assert capsys.readouterr().out.startswith("1 file, ")


def test_lines_say_what_is_unusual() -> None:
    entry: dict[str, object] = {
        "file": "f", "kind": "batch", "position": 4096, "magic": 2, "crc": 1, "crc_ok": False, "codec": "zstd",
        "producer_id": 0, "transactional": True, "control": False,
    }  # fmt: skip
    assert entry_text(entry) == "        4096  batch  crc_ok=false codec=zstd producer_id=0 transactional=true"
    damage: dict[str, object] = {"file": "f", "kind": "damage", "position": 7, "reason": "torn\x1b"}
    assert entry_text(damage) == "           7  damage  reason=torn\\x1b"


@pytest.mark.parametrize(("data", "text"), [(b'a"b', '"a\\"b"'), (b"\x00\xff\xc3\xa9", '"\\x00\\xffé"'), (b"", '""')])
def test_bytes_in_quotes(data: bytes, text: str) -> None:
    assert quote(data) == text


def test_json_of_other_values() -> None:
    entry: dict[str, Any] = {"key": b"\xff", "value": None, "headers": [("h", b"\xfe")], "offset": 3}
    assert entry_json(entry) == {
        "key_base64": "/w==",
        "value": None,
        "headers": [{"key": "h", "value_base64": "/g=="}],
        "offset": 3,
    }
