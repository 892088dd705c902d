"""The arguments of `mirror()`, and which settings of topics it changes."""

import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tidelog.client.errors import GaveUp
from tidelog.model.ids import TopicPartition
from tidelog.pipelines import PipelineError, mirror
from tidelog.pipelines.declarations import ATTRIBUTE, TemporaryError
from tidelog.pipelines.mirror_check import Checker, GroupCheck, PartitionCheck, main, report
from tidelog.pipelines.mirror_topics import SETTINGS_NOT_COPIED, Setting, setting_changes
from tidelog.pipelines.mirror_writer import start_error
from tidelog.pipelines.mirrors import Mirror
from tidelog.wire.errors import InvalidTopic

SOURCE = "127.0.0.1:19092"


def declared(**arguments: object) -> Mirror:
    function = mirror("m", **{"source": SOURCE, "topics": "shop-.*"} | arguments)  # type: ignore[arg-type]
    [source] = getattr(function, ATTRIBUTE).sources.values()
    assert isinstance(source, Mirror)
    return source


def matches(pattern: str, name: str) -> bool:
    """With the two constructs of Java that Python does not have."""
    python = re.sub(r"\\Q(.*?)\\E", lambda quoted: re.escape(quoted[1]), pattern)
    return re.search(python, name) is not None


@pytest.mark.parametrize(
    ("topics", "prefix", "name", "expected"),
    [
        ("shop-.*", "", "shop-orders", True),
        ("shop-.*", "", "my-shop-orders", False),
        ("shop|stock", "", "stock", True),
        ("shop|stock", "", "stocks", False),
        (".*", "", "__consumer_offsets", False),
        (".*", "", "mirror-offsets.shop", False),
        (".*", "eu.", "eu.orders", False),
        (".*", "eu.", "europe", True),
        (["a.b", "c"], "", "a.b", True),
        (["a.b", "c"], "", "axb", False),
    ],
)
def test_the_pattern_is_for_whole_names(topics: object, prefix: str, name: str, expected: bool) -> None:
    assert matches(declared(topics=topics, prefix=prefix).pattern, name) is expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": []}, "mirror m: topics is an empty list: name at least one topic, or use a pattern"),
        ({"prefix": "a b"}, "mirror m: prefix 'a b' must have"),
        ({"begin": "now"}, "mirror m: begin is 'now': it must be earliest, latest or a timestamp"),
        ({"target": SOURCE}, "mirror m: source and target are the same cluster: set another target, or a prefix"),
        (
            {"read_options": {"minPartitions": "3"}},
            "read option minPartitions is not accepted: it would change the order",
        ),
        ({"read_options": {"subscribe": "a"}}, "read option subscribe is not accepted: set mirror(topics=...) instead"),
        ({"write_options": {"topic": "a"}}, "write option topic is not accepted; these are accepted: kafka.batch.size"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        declared(**arguments)


def test_only_settings_of_the_topic_itself_are_copied() -> None:
    source = {
        "retention.ms": Setting("5", True),
        "segment.bytes": Setting("7", False),
        "cleanup.policy": Setting("compact", True),
        "min.insync.replicas": Setting("2", True),
        "compression.type": Setting("producer", False),
    }
    target = {
        "retention.ms": Setting("9", True),
        "segment.bytes": Setting("8", True),
        "cleanup.policy": Setting("compact", True),
        "durability": Setting("flush", True),
        "compression.type": Setting("zstd", False),
    }
    assert setting_changes(source, target, SETTINGS_NOT_COPIED) == {"retention.ms": "5", "segment.bytes": None}
    assert setting_changes(source, {}, {"cleanup.policy", "min.insync.replicas"}) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("present", "expected"), [("LogAppendTime", {"message.timestamp.type": "CreateTime"}), ("CreateTime", {})]
)
def test_timestamps_are_those_of_the_source(present: str, expected: dict[str, str]) -> None:
    source = {"message.timestamp.type": Setting("LogAppendTime", True)}
    target = {"message.timestamp.type": Setting(present, False)}
    assert setting_changes(source, target, SETTINGS_NOT_COPIED) == expected


def test_only_a_cluster_without_an_answer_is_worth_another_attempt() -> None:
    silent, refused = (
        start_error(declared(), GaveUp("no answer")),
        start_error(declared(), InvalidTopic("no")),
    )
    assert str(silent) == "mirror m cannot begin: no answer"
    assert (isinstance(silent, TemporaryError), isinstance(refused, TemporaryError)) == (True, False)


def test_a_comparison_of_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    cluster = MagicMock()
    cluster.partition_counts.return_value = {}
    with pytest.raises(PipelineError, match=f"mirror m: {SOURCE} has no topic that matches shop-"):
        Checker(declared(), cluster, cluster)
    program = "from tidelog.pipelines import file, pipeline\n@pipeline(source=file('in'), sink=file('out'))\n"
    (tmp_path / "a.py").write_text(program + "def copy(rows): return rows\n")
    monkeypatch.setattr(sys, "argv", ["mirror_check", str(tmp_path / "a.py")])
    assert main() == 2
    assert "a.py declares no mirror, so there is nothing to compare" in capsys.readouterr().err


def test_the_report_counts_in_whole_words() -> None:
    tp = TopicPartition("t", 0)
    partitions = [PartitionCheck(tp, 1, ""), PartitionCheck(tp, 2, "")]
    groups = [GroupCheck("g", tp, 5, 7, 1, 1), GroupCheck("g", tp, 5, 7, 1, 3)]
    assert [*report(partitions, groups)] == [
        ("t-0: 1 record, the same", True),
        ("t-0: 2 records, the same", True),
        ("group g, t-0: offset 5 in the source, 7 in the target, 1 unread record in both", True),
        ("group g, t-0: 1 unread record in the source, 3 in the target", False),
    ]
