"""Generates those parts of the documents that depend on the code. Called by `script/docs`.

A generated part is between `<!-- generated: NAME -->` and `<!-- end -->`. A test checks that all parts are current.
"""

import argparse
import gzip
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tidelog.api.registry import TABLE
from tidelog.config.key import Key
from tidelog.config.keys import BROKER_KEYS, TOPIC_KEYS, change_mode
from tidelog.wire.apis import APIS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "GAPS.md",
    "docs/compatibility.md",
    "docs/conformance.md",
    "docs/kafka-tools.md",
    "docs/settings.md",
)
PART = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LARGEST = {str((1 << 31) - 1), str((1 << 63) - 1)}
"""Defaults that mean "no limit" or "never"."""
CONFORMANCE = ROOT / "tests/conformance"
SUBJECTS = (
    ("SASL: users and their mechanisms", r"^sasl\.|^connections\.max\.reauth|^connection\.failed\.auth"),
    ("TLS: keys and certificates", r"^ssl\."),
    (
        "Access control and delegation tokens",
        r"^authorizer|^principal|^security\.|^delegation|^alter\.config\.policy|topic\.policy",
    ),
    ("Tiered storage", r"^remote\.|\.remote\.|local\.retention|tiered"),
    ("Share groups", r"share\."),
    ("Streams groups", r"\.streams\."),
    ("Transactions and producers' ids", r"transaction|\.txn\.|^producer\.id"),
    ("Offsets of groups", r"^offsets?\."),
    ("Consumer groups, of both protocols", r"^group\."),
    ("Quotas", r"quota|throttled"),
    ("Compaction", r"cleaner|compaction|^cleanup\.policy|^log\.cleanup|delete\.retention|dirty\.ratio"),
    (
        "Controllers and their metadata log",
        r"^controller\.(quorum|socket)|^metadata\.|^process\.roles|^broker\.(heartbeat|session)|^initial\.broker",
    ),
    ("Replication and leaders", r"replica|leader|insync|^controlled\.shutdown|^auto\.leader|inter\.broker"),
    ("Retention: how long records are kept", r"retention|file\.delete|segment\.delete"),
    ("Durability and validation", r"flush|durability|preallocate|record\.validation"),
    (
        "Segments, indexes and data directories",
        r"segment|\.roll|index|^log\.dirs?$|\.log\.dirs|^log\.dir|^metadata\.log\.dir|recovery\.threads",
    ),
    ("Records: size, time and compression", r"message|compression|timestamp"),
    (
        "Listeners, connections and requests",
        r"listener|connection|^socket\.|request|^fetch\.|incremental\.fetch|purgatory|^num\.(io|network)",
    ),
    ("Metrics", r"metric|telemetry"),
    ("Topics: creation, names, deletion", r"topic|^num\.partitions|replication\.factor"),
    ("The broker itself", r""),
)
"""The subjects of the page of all settings, in reverse order, each with a regular expression.

A setting belongs to the first subject whose expression matches a part of the setting's name.
"""


def default_text(key: Key) -> str:
    """Return the default of a setting as a short text for a table."""
    if key.default is None or key.default == "":
        return "-"
    if key.name == "listener.security.protocol.map":
        return "each protocol's own name"
    if key.default in LARGEST:
        return "no limit"
    return f"`{key.default}`"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _topic_default(key: Key) -> str:
    """Return the default of a topic's setting on a broker without settings. This is the default of the first synonym
    that has one.

    (A synonym is a broker's setting that supplies the default of the topic's setting.)
    """
    for name, factor in key.synonyms:
        default = BROKER_KEYS[name].default
        if default is not None:
            if default in LARGEST or factor == 1:
                return default_text(BROKER_KEYS[name])
            return f"`{int(default) * factor}`"
    return default_text(key)


def _synonyms(key: Key) -> str:
    effective = [f"`{name}`" for name, _ in key.synonyms if BROKER_KEYS[name].effect]
    return ", ".join(effective) or "-"


def broker_settings() -> str:
    return _tables_by_subject(BROKER_KEYS.values(), default_text, "changed", lambda key: change_mode(key.name).value)


def topic_settings() -> str:
    return _tables_by_subject(TOPIC_KEYS.values(), _topic_default, "broker's default for it", _synonyms)


def _tables_by_subject(
    keys: Iterable[Key], default: Callable[[Key], str], column: str, cell: Callable[[Key], str]
) -> str:
    """Return one table, with a heading, for each subject that has settings. Settings with an effect are first.

    `column` is the title of the fourth column, and `cell` returns its content for a setting.
    """
    keys_by_subject: dict[str, list[Key]] = {subject: [] for subject, _ in reversed(SUBJECTS)}
    for key in sorted(keys, key=lambda key: key.name):
        keys_by_subject[_subject(key)].append(key)
    tables = []
    for subject, settings in keys_by_subject.items():
        if settings:
            table = f"### {subject}\n\n" + row("setting", "type", "default", column, "effect", "meaning")
            table += row(*["---"] * 6)
            for key in sorted(settings, key=lambda key: not key.effect):
                effect = "yes" if key.effect else "**no**"
                table += row(f"`{key.name}`", key.type.name.lower(), default(key), cell(key), effect, key.doc or "-")
            tables.append(table)
    return "\n".join(tables)


def settings_without_effect() -> str:
    """Return a table of the settings without effect: for each subject the names of brokers' and of topics' settings."""
    scopes = (("broker", BROKER_KEYS), ("topic", TOPIC_KEYS))
    ineffective = [(scope, key) for scope, keys in scopes for key in keys.values()]
    ineffective = [(scope, key) for scope, key in ineffective if not key.effect]
    lines = row("subject", "settings of brokers", "settings of topics") + row("---", "---", "---")
    for subject, _ in reversed(SUBJECTS):
        names: dict[str, list[str]] = {"broker": [], "topic": []}
        for scope, key in ineffective:
            if _subject(key) == subject:
                names[scope].append(f"`{key.name}`")
        if any(names.values()):
            lines += row(subject, *(", ".join(sorted(scope_names)) or "-" for scope_names in names.values()))
    return lines


def _subject(key: Key) -> str:
    return next(subject for subject, pattern in SUBJECTS if re.search(pattern, key.name))


def settings_counts() -> str:
    counts = []
    for keys, owners in ((BROKER_KEYS, "brokers"), (TOPIC_KEYS, "topics")):
        ineffective = sum(not key.effect for key in keys.values())
        counts.append(f"{len(keys)} settings of {owners}, {ineffective} of them without effect yet")
    return wrap_lines(f"There are {' and '.join(counts)}.")


def wrap_lines(text: str, width: int = 120) -> str:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines) + "\n"


def missing_apis() -> str:
    """Return the names and keys of the APIs of Kafka's protocol that the broker does not advertise."""
    return wrap_lines(", ".join(f"{info.name} ({key})" for key, info in sorted(APIS.items()) if key not in TABLE) + ".")


def served_apis() -> str:
    lines = row("API", "key", "versions", "requests recorded") + row("---", "---:", "---", "---:")
    _, requests = count_recorded()
    for key, entry in sorted(TABLE.items()):
        lines += row(APIS[key].name, str(key), f"{entry.min_version}-{entry.max_version}", f"{requests[key]:,}")
    return lines


def conformance_counts() -> str:
    runs, requests = count_recorded()
    files = (CONFORMANCE / "allowed.txt", CONFORMANCE / "allowed_cluster.txt")
    rules = [line for file in files for line in file.read_text().splitlines()]
    varying = sum(line.startswith("varies") for line in rules)
    otherwise = sum(line.startswith("differs") for line in rules)
    return wrap_lines(
        f"Recorded from Apache Kafka 4.3.1: {runs:,} conversations with {requests.total():,} requests. "
        f"Allowed differences: {varying} rules for values that vary between two runs of Kafka itself, "
        f"and {otherwise} rules for behaviour in which Tidelog differs from Kafka."
    )


def count_recorded() -> tuple[int, Counter[int]]:
    """Return the number of recorded conversations, and the number of their requests by API key."""
    runs = 0
    requests: Counter[int] = Counter()
    for path in sorted((CONFORMANCE / "recorded").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for line in lines:
                runs += 1
                requests.update(api_key for _, _, api_key, *_ in json.loads(line)["outcomes"])
    return runs, requests


def harness_table(module: str) -> Callable[[], str]:
    """Return a function that returns the table of a module of tests/interop_harness.

    The table lists the operations that the tests of this module run.
    """

    def table() -> str:
        if str(ROOT / "tests") not in sys.path:
            sys.path.append(str(ROOT / "tests"))
        text: str = importlib.import_module(f"interop_harness.{module}").table()
        return text

    return table


PARTS: dict[str, Callable[[], str]] = {
    "settings-counts": settings_counts,
    "settings-without-effect": settings_without_effect,
    "all-broker-settings": broker_settings,
    "all-topic-settings": topic_settings,
    "missing-apis": missing_apis,
    "served-apis": served_apis,
    "conformance-counts": conformance_counts,
    "admin-clients": harness_table("admin_calls"),
    "kafka-tools": harness_table("kafka_tools"),
}


def regenerate(text: str) -> str:
    """Return the text of a document with current generated parts."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[4]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a part is not current")
    check = parser.parse_args().check
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        current_text = regenerate(text)
        if current_text != text:
            stale.append(name)
            if not check:
                path.write_text(current_text)
    if stale:
        print(f"{'not current, run script/docs' if check else 'written'}: {', '.join(stale)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
