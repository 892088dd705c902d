"""Which settings have an effect: the table's flags against what the code reads.

A broker's setting is read as an attribute of a configuration (`services.config.max_connections`) or by name
(`config.get("log.dirs")`); a topic's as an attribute of `LogConfig`, or of a property of it that is used. The broker's
settings that only give topics their defaults have an effect when the topics' have.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.keys import BROKER_KEYS, TOPIC_KEYS, attribute_name
from tidelog.log.config import LogConfig

SOURCE = Path(__file__).parents[3] / "src/tidelog"
TABLES = {
    *("broker_keys.py", "cluster_keys.py", "coordinator_keys.py", "unsupported_keys.py", "quota_keys.py"),
    *("replication_keys.py", "topic_keys.py"),
}
LOG_CONFIG = SOURCE / "log/config.py"

BROKER_ATTRIBUTES = {attribute_name(name): name for name in BROKER_KEYS}
TOPIC_FIELDS = {attribute_name(name): name for name in TOPIC_KEYS}


def receiver(node: ast.expr) -> str:
    """The last name of what an attribute is read from: `self._config` -> `_config`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    return [
        (path, ast.parse(path.read_text()))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name not in TABLES and "wire/messages" not in path.as_posix()
    ]


@cache
def names_used() -> frozenset[str]:
    """Every name that is used somewhere, as a variable or as an attribute."""
    nodes = [node for _, tree in modules() for node in ast.walk(tree)]
    return frozenset(
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Name)
    )


def live(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module, without functions that nobody uses: what those read has no effect."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            called_by_others = node.name == "handle" or node.name.startswith("__")
            if not called_by_others and node.name not in names_used():
                continue
        yield node
        yield from live(node)


def attributes_read() -> Iterator[tuple[Path, str]]:
    """Attributes of anything that is called a config."""
    for path, tree in modules():
        for node in live(tree):
            if isinstance(node, ast.Attribute) and receiver(node.value).endswith("config"):
                yield path, node.attr


def names_read() -> Iterator[str]:
    """Settings asked for by their own names."""
    for _, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            first = node.args[0]
            by_name = node.func.attr in ("get", "pop") and receiver(node.func.value) in (
                "self",
                "config",
                "_config",
                "values",
            )
            if by_name and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def topic_values_read() -> Iterator[str]:
    """Settings of topics that `topic_value` is asked for, by constants of the same module."""
    for _, tree in modules():
        texts = {
            node.target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and receiver(node.func) == "topic_value" and node.args:
                yield texts.get(receiver(node.args[0]), "")


def log_fields_behind_properties(read: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(LOG_CONFIG.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in read:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and receiver(inner.value) == "self":
                    yield inner.attr


def settings_read() -> tuple[set[str], set[str]]:
    """Names of topics' and of brokers' settings that the code reads."""
    attributes = {name for path, name in attributes_read() if path != LOG_CONFIG}
    attributes |= set(log_fields_behind_properties(attributes))
    by_name = set(names_read())
    topic = {TOPIC_FIELDS[f] for f in attributes & set(LogConfig.__slots__) & set(TOPIC_FIELDS)}
    topic |= by_name & set(TOPIC_KEYS) - set(BROKER_KEYS)
    topic |= set(topic_values_read()) & set(TOPIC_KEYS)
    annotated = set(BrokerConfig.__annotations__)
    broker = {
        BROKER_ATTRIBUTES[a] for a in attributes & (annotated | set(LogConfig.__slots__)) & set(BROKER_ATTRIBUTES)
    }
    broker |= by_name & set(BROKER_KEYS)
    for name in topic:
        broker |= {synonym for synonym, _ in TOPIC_KEYS[name].synonyms}
    if "node.id" in broker:
        broker.add("broker.id")
    return topic, broker


def test_the_flags_tell_what_the_code_reads() -> None:
    topic, broker = settings_read()
    flagged_topic = {key.name for key in TOPIC_KEYS.values() if key.effect}
    flagged_broker = {key.name for key in BROKER_KEYS.values() if key.effect}
    assert {
        "read, but flagged as without effect": sorted((topic - flagged_topic) | (broker - flagged_broker)),
        "flagged as with effect, but never read": sorted((flagged_topic - topic) | (flagged_broker - broker)),
    } == {
        "read, but flagged as without effect": [],
        "flagged as with effect, but never read": [],
    }


def test_attributes_are_there_for_settings_that_are_read() -> None:
    """An attribute that nothing reads would be a promise that is not kept."""
    read = {name for _, name in attributes_read()}
    assert sorted(set(BrokerConfig.__annotations__) - read) == []
