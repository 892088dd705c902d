"""Writes the parts of the documents that follow from the code: called by `script/docs`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. A test holds the documents to it.
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
from tidelog.config.keys import BROKER_KEYS, TOPIC_KEYS
from tidelog.wire.apis import APIS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("GAPS.md", "docs/compatibility.md", "docs/conformance.md", "docs/kafka-tools.md", "docs/operating.md")
PART = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LARGEST = {str((1 << 31) - 1), str((1 << 63) - 1)}
"""Defaults that stand for "no limit" or "never"."""
CONFORMANCE = ROOT / "tests/conformance"
ADDRESSES = ("listeners", "advertised.listeners", "listener.security.protocol.map", "controller.listener.names")


def shown(key: Key) -> str:
    """A default, as short as it can be said."""
    if key.default is None or key.default == "":
        return "-"
    if key.name == "listener.security.protocol.map":
        return "each protocol's own name"
    if key.default in LARGEST:
        return "no limit"
    return f"`{key.default}`"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def broker_settings() -> str:
    """Those with an effect, but for the ones that only give topics their defaults."""
    defaults = {name for key in TOPIC_KEYS.values() for name, _ in key.synonyms}
    lines = row("setting", "default", "what it does", "to change it") + row("---", "---", "---", "---")
    for key in sorted(BROKER_KEYS.values(), key=lambda key: key.name):
        if key.effect and not key.hidden and key.name not in defaults:
            how = "restart" if key.read_only or key.name in ADDRESSES else "live"
            lines += row(f"`{key.name}`", shown(key), key.doc, how)
    return lines


def topic_settings() -> str:
    lines = row("setting", "default", "what it does", "a broker's default for it")
    lines += row("---", "---", "---", "---")
    for key in sorted(TOPIC_KEYS.values(), key=lambda key: key.name):
        if key.effect and not key.hidden:
            lines += row(f"`{key.name}`", _topic_default(key), key.doc, _synonyms(key))
    return lines


def _topic_default(key: Key) -> str:
    """What a topic has on a broker without settings: the first synonym that has a default."""
    for name, factor in key.synonyms:
        default = BROKER_KEYS[name].default
        if default is not None:
            if default in LARGEST or factor == 1:
                return shown(BROKER_KEYS[name])
            return f"`{int(default) * factor}`"
    return shown(key)


def _synonyms(key: Key) -> str:
    effective = [f"`{name}`" for name, _ in key.synonyms if BROKER_KEYS[name].effect]
    return ", ".join(effective) or "-"


def idle_topic_settings() -> str:
    return _names(key for key in TOPIC_KEYS.values() if not key.effect)


def idle_broker_settings() -> str:
    return _names(key for key in BROKER_KEYS.values() if not key.effect)


def _names(keys: Iterable[Key]) -> str:
    names = [f"`{key.name}`" for key in sorted(keys, key=lambda key: key.name)]
    return wrapped(", ".join(names) + ".")


def wrapped(text: str, width: int = 120) -> str:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines) + "\n"


def missing_apis() -> str:
    """By name and key: what Kafka's protocol has and the broker does not advertise."""
    return wrapped(", ".join(f"{info.name} ({key})" for key, info in sorted(APIS.items()) if key not in TABLE) + ".")


def served_apis() -> str:
    lines = row("API", "key", "versions", "requests recorded") + row("---", "---:", "---", "---:")
    _, requests = recorded()
    for key, entry in sorted(TABLE.items()):
        lines += row(APIS[key].name, str(key), f"{entry.min_version}-{entry.max_version}", f"{requests[key]:,}")
    return lines


def conformance_counts() -> str:
    runs, requests = recorded()
    rules = (CONFORMANCE / "allowed.txt").read_text().splitlines()
    varying = sum(line.startswith("varies") for line in rules)
    otherwise = sum(line.startswith("differs") for line in rules)
    return wrapped(
        f"Recorded from Apache Kafka 4.3.1: {runs:,} conversations with {requests.total():,} requests. "
        f"Named exceptions: {varying} for what varies between any two runs of Kafka itself, "
        f"{otherwise} for what Tidelog does otherwise."
    )


def recorded() -> tuple[int, Counter[int]]:
    """How many conversations, and how many requests of each API key."""
    runs = 0
    requests: Counter[int] = Counter()
    for path in sorted((CONFORMANCE / "recorded").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for line in lines:
                runs += 1
                requests.update(api_key for _, _, api_key, *_ in json.loads(line)["outcomes"])
    return runs, requests


def of_the_tests(module: str) -> Callable[[], str]:
    """The table that a module of tests/interop_harness makes of what its tests run."""

    def table() -> str:
        if str(ROOT / "tests") not in sys.path:
            sys.path.append(str(ROOT / "tests"))
        made: str = importlib.import_module(f"interop_harness.{module}").table()
        return made

    return table


PARTS: dict[str, Callable[[], str]] = {
    "broker-settings": broker_settings,
    "topic-settings": topic_settings,
    "idle-topic-settings": idle_topic_settings,
    "idle-broker-settings": idle_broker_settings,
    "missing-apis": missing_apis,
    "served-apis": served_apis,
    "conformance-counts": conformance_counts,
    "admin-clients": of_the_tests("admin_calls"),
    "kafka-tools": of_the_tests("kafka_tools"),
}


def renewed(text: str) -> str:
    """A document with its generated parts as they should be."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[4]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a part is out of step")
    check = parser.parse_args().check
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        fresh = renewed(text)
        if fresh != text:
            stale.append(name)
            if not check:
                path.write_text(fresh)
    if stale:
        print(f"{'out of step, run script/docs' if check else 'written'}: {', '.join(stale)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
