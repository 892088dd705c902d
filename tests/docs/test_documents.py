"""The documents: every command and program in them runs, links lead somewhere, both READMEs say the same.

A document is followed as a reader would: block after block, in one directory. `tidelog start` runs in the background
on a free port, and what comes after it finds the broker there. A block in `text` is what the block before it prints;
an ellipsis stands for anything. If that text begins with `Error: `, the block before it has to fail, and 127.0.0.1:9092
stands for the broker that runs.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from interop_harness.target import NoKafka, started
from tidelog.testing import Broker

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
REPORTS = {"compatibility.md", "conformance.md", "performance.md", "simulation.md"}
"""What they show was printed by tests and benchmarks."""
RUN = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in REPORTS),
]
PAGES_ON_ONE_BROKER = (
    "getting-started",
    "changing-settings",
    "groups",
    "transactions",
    "quotas",
    "spark",
    "pipelines",
    "troubleshooting",
)
ON_ONE_BROKER = [
    ROOT / name
    for name in (
        "README.md",
        *(f"docs/{page}.md" for page in PAGES_ON_ONE_BROKER),
    )
]
"""Pages that take the broker which `tidelog start` gives without more: whoever reads on has one running already."""
WITH_SPARK = {"spark.md", "pipelines.md", "migration.md", "connectors.md"}
SHORT_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Environment of pages that start Spark. Each session is short: the JVM's second compiler would take more time than it
saves."""
OLD_CLUSTER = "127.0.0.1:19092"
"""The address of a second broker, which runs beside the first one. Like 127.0.0.1:9092, it stands for a free port."""
LIMIT_S = 240

SKIPPED = {
    "pip install": "needs the network",
    "python3 -m venv": "is for the installation that follows it",
    ".venv/bin/pip install": "needs the network",
    ". .venv/bin/activate": "follows the installation",
    "script/demo": "has a test of its own: it runs for a minute and more",
    "script/test": "is what runs this",
    "cp -a kafka-data": "is done below, with a directory that is at hand",
}
"""Lines that a reader runs and this test does not, by how they begin, with the reason."""

FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE = re.compile(
    r"""(?:topic create |tidelog produce |\.produce\("|"topic", "|^SALES = "|^TOTALS = ")([a-z][\w-]*)""", re.MULTILINE
)
"""A topic's name, where a command or a program makes it or writes to it."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    text = path.read_text()
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in FENCE.finditer(text)]


class Reader:
    """Follows one document in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bootstrap = ""
        self.broker: subprocess.Popen[str] | None = None
        self.old_cluster: subprocess.Popen[str] | None = None
        self.old_bootstrap = OLD_CLUSTER
        self.output = ""
        self.tests = 0
        self.variables: dict[str, str] = {}
        """Environment variables of the commands and programs, beside those of every page."""
        self.keeps_broker = False
        """Whether the first `tidelog start` is to serve for all."""
        self._started = ""

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "PYTEST_"))}
        common = {"TIDELOG_BOOTSTRAP": self.bootstrap, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120"}
        return kept | common | self.variables

    def follow(self, block: Block, *, fails: bool = False) -> None:
        """Do what the block says. `fails`: its commands must end with an error, which the next block shows."""
        if block.language == "text":
            self.compare(block.text)
        elif block.language == "ini":
            (self.directory / "pytest.ini").write_text(block.text)
        elif block.language == "python":
            self.python(block.text)
        elif block.language == "sh":
            self.shell(block.text, fails=fails)
        else:
            pytest.fail(f"a block in {block.language or 'no language'}: what is to be done with it?")

    def compare(self, expected: str) -> None:
        shown = expected.replace("127.0.0.1:9092", self.bootstrap)
        pattern = ".*".join(re.escape(part) for part in shown.split("…"))
        assert re.search(pattern, self.output), f"expected\n{expected}\nbut it printed\n{self.output}"

    def shell(self, text: str, *, fails: bool = False) -> None:
        lines = [line for line in text.splitlines() if line and not line.startswith(tuple(SKIPPED))]
        if len(lines) == 1 and is_server(lines[0]) and not fails:
            self.start(lines[0])
        else:
            script = "\n".join(lines).replace("127.0.0.1:9092", self.bootstrap).replace(OLD_CLUSTER, self.old_bootstrap)
            self.run(["bash", "-euo", "pipefail", "-c", script], fails=fails)

    def python(self, text: str) -> None:
        if "\ndef test_" in text:
            self.tests += 1
            name = f"test_{self.tests}.py"
            (self.directory / name).write_text(text)
            self.run(["pytest", "-q", "-p", "no:randomly", name])
            return
        self.run([sys.executable, "-c", text.replace("127.0.0.1:9092", self.bootstrap)])

    def run(self, command: list[str], *, fails: bool = False) -> None:
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment(), capture_output=True, text=True, timeout=LIMIT_S
        )
        self.output = done.stdout + done.stderr if fails else done.stdout
        assert (done.returncode != 0) == fails, f"{command[-1]}\n{done.stdout}{done.stderr}"
        # librdkafka's complaints about a broker that has stopped: a client that outlived it.
        assert "|FAIL|" not in done.stderr, f"{command[-1]}\n{done.stderr}"

    def start(self, line: str) -> None:
        """On a free port, whatever the line says: 9092 may be taken."""
        if self.keeps_broker and self.broker is not None:
            self.output = self._started
            return
        words = line.split("#")[0].split()
        at = words.index("--listen") + 1 if "--listen" in words else 0
        is_old_cluster = words[at] == OLD_CLUSTER
        if is_old_cluster and self.old_bootstrap != OLD_CLUSTER:
            return  # the test has started it
        if not is_old_cluster:
            self.stop()
        listen = f"{words[at].partition(':')[0] if at else '127.0.0.1'}:0"
        words = [*words[: at - 1], *words[at + 1 :]] if at else words
        words = [word.removesuffix(":9092") + ":0" if word.endswith(":9092") else word for word in words]
        process = subprocess.Popen(
            [*words, "--listen", listen],
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if is_old_cluster:
            self.old_cluster = process
        else:
            self.broker = process
        assert process.stdout is not None
        if "--brokers" in words:
            lines = iter(process.stdout.readline, "")
            self.output = next(line for line in lines if line.startswith("Ready: "))
            self.bootstrap = self.output.split()[-1]
            return
        self.output = process.stdout.readline()
        address = re.search(r"listening on \S+:(\d+) ", self.output)
        assert address, f"{line}: {self.output!r}"
        if is_old_cluster:
            self.old_bootstrap = f"127.0.0.1:{address[1]}"
        else:
            self._started = self.output
            self.bootstrap = f"127.0.0.1:{address[1]}"

    def stop(self) -> None:
        if self.broker is not None:
            broker, self.broker = self.broker, None
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(30) == 0
            assert broker.stdout is not None
            broker.stdout.close()


def is_server(line: str) -> bool:
    """Whether it runs a broker in the foreground: what is pasted behind it is not run."""
    return line.split()[:2] == ["tidelog", "start"] and not line.partition("#")[0].rstrip().endswith("&")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
        reader.stop()
    finally:
        for broker in (reader.broker, reader.old_cluster):
            if broker is not None:
                broker.kill()
                broker.communicate()


def together(found: list[Block]) -> list[Block]:
    """Programs of Spark that follow each other are one: a session takes seconds to start."""
    joined: list[Block] = []
    for block in found:
        if block.language == "python" and joined and joined[-1].language == "python" and "spark" in joined[-1].text:
            joined[-1] = joined[-1]._replace(text=f"{joined[-1].text}\n{block.text}")
        else:
            joined.append(block)
    return joined


@pytest.mark.parametrize("document", RUN, ids=lambda path: path.name)
def test_a_document_can_be_followed(document: Path, reader: Reader) -> None:
    found = together(blocks(document))
    if document.name in WITH_SPARK:
        pytest.importorskip("pyspark", reason="needs tidelog[spark]")
        reader.variables = SHORT_JVM
    if document.name == "adoption.md":
        as_kafka_leaves_it(reader.directory / "copy-of-kafka-data")
    if "9092" not in "".join(block.text for block in found if block.text.startswith("tidelog start")):
        reader.start("tidelog start")  # a document that takes one for granted
    follow(reader, document, found)


def test_the_move_from_apache_kafka_can_be_followed(reader: Reader) -> None:
    """docs/migration.md with Apache Kafka as the old cluster, instead of a second broker of Tidelog."""
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    document = ROOT / "docs/migration.md"
    reader.variables = SHORT_JVM
    try:
        with started("kafka") as kafka:
            reader.old_bootstrap = kafka.bootstrap
            follow(reader, document, blocks(document))
            assert reader.old_cluster is None
    except NoKafka as missing:
        pytest.skip(f"Apache Kafka cannot run here: {missing}")


def shows_error(block: Block | None) -> bool:
    """Whether it is the output of a command that is meant to fail."""
    return block is not None and block.language == "text" and block.text.startswith("Error: ")


def follow(reader: Reader, document: Path, found: list[Block]) -> None:
    for block, after in zip_longest(found, found[1:]):
        try:
            reader.follow(block, fails=shows_error(after))
        except AssertionError as error:
            raise AssertionError(f"{document.relative_to(ROOT)}:{block.line}: {error}") from error


def test_pages_can_be_followed_one_after_another(reader: Reader) -> None:
    """On one broker, which no page leaves in another's way: nothing that it needs is made or altered by another."""
    reader.keeps_broker = True
    reader.start("tidelog start")
    for document in ON_ONE_BROKER:
        if document.name not in WITH_SPARK:  # which take their time, and have topics of their own
            follow(reader, document, blocks(document))
    reader.shell("tidelog broker config describe --json")
    assert set(json.loads(reader.output)) == {"listeners", "log.dirs"}, "a page leaves settings behind"


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_a_page_has_the_common_broker_or_one_of_its_own(document: Path) -> None:
    starts = [
        line
        for block in blocks(document)
        if block.language == "sh"
        for line in block.text.splitlines()
        if is_server(line) and "--data" not in line
    ]
    assert bool(starts) == (document in ON_ONE_BROKER)


def test_each_page_and_example_has_topics_of_its_own() -> None:
    makers: dict[str, set[str]] = {}
    programs = sorted((ROOT / "examples").glob("*.py"))
    for path in [*(path for path in RUN if path.name != "README.zh-CN.md"), *programs]:
        texts = [path.read_text()] if path in programs else [block.text for block in blocks(path)]
        for text in texts:
            if "Broker(" not in text and "tidelog_broker" not in text:  # else the broker is its own, too
                for topic in MADE.findall(text):
                    makers.setdefault(topic, set()).add(path.name)
    assert {"orders", "parcels", "sales", "shop-sales"} <= set(makers)
    assert not {topic: sorted(names) for topic, names in makers.items() if len(names) > 1}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_block_can_be_pasted(document: Path) -> None:
    """A broker in the foreground ends its block, and before the next one the reader is sent to another terminal."""
    text = document.read_text()
    shell = [block for block in FENCE.finditer(text) if block[1] == "sh"]
    for block, after in zip_longest(shell, shell[1:]):
        place = f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}"
        *others, last = [line for line in block[2].splitlines() if line]
        assert not any(map(is_server, others)), f"{place}: what follows a broker in the foreground does not run"
        if is_server(last) and after is not None and not after[2].startswith("tidelog start"):
            said = text[block.end() : after.start()]
            if said.lstrip().startswith("```text\nError: "):
                continue  # that start fails, so it leaves the terminal free
            assert "terminal" in said or "终端" in said, f"{place}: nobody says that the next block needs a terminal"


def as_kafka_leaves_it(directory: Path) -> None:
    """A directory without our metadata: files in Kafka's formats, which is all that adoption looks at."""
    from confluent_kafka import Producer

    with Broker(data=directory) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", value="of Kafka's time")
        assert producer.flush(30) == 0
    for file in directory.glob("metadata.sqlite*"):
        file.unlink()


def test_what_is_skipped_stands_in_some_document() -> None:
    lines = [line for path in RUN for block in blocks(path) for line in block.text.splitlines()]
    assert not [start for start in SKIPPED if not any(line.startswith(start) for line in lines)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text())
    broken = []
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = document if not path else (document.parent / path).resolve()
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def anchors(document: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_chinese_readme_is_in_step() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"

    def shape(path: Path) -> dict[str, object]:
        text = path.read_text()
        prose = FENCE.sub("", text)
        return {
            "headings": [len(level) for level in re.findall(r"^(#+) ", prose, re.MULTILINE)],
            "blocks": [
                (b.language, [line.split("#")[0].rstrip() for line in b.text.splitlines()]) for b in blocks(path)
            ],
            # A heading's anchor is in the page's own language.
            "links": [t.partition("#")[0] for t in LINK.findall(prose) if not t.startswith("README")],
            "rows": len(re.findall(r"^\|", prose, re.MULTILINE)),
            "items": len(re.findall(r"^- ", prose, re.MULTILINE)),
            # In the order of each language; a figure may be repeated in one of them.
            "figures": [
                set(re.findall(r"\d[\d,.]*\d|\d", part)) for part in re.split(r"^## ", prose, flags=re.MULTILINE)
            ],
        }

    assert shape(english) == shape(chinese)


def test_generated_parts_are_in_step() -> None:
    done = subprocess.run(
        [sys.executable, "script/docs_generate.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_summaries_shown_are_those_of_the_present_recording() -> None:
    """One line for one broker, which needs every rule of `allowed.txt`, one for a cluster, three for other settings."""
    text = (ROOT / "docs/conformance.md").read_text()
    shown = re.findall(r"^(\d+) conversations, .* 0 differences; (\d+) exceptions used", text, re.MULTILINE)
    recorded = re.search(r"4.3.1: ([\d,]+) conversations", text)
    rules = (ROOT / "tests/conformance/allowed.txt").read_text().splitlines()
    assert len(shown) == 5
    assert recorded
    assert sum(int(conversations) for conversations, _ in shown) == int(recorded[1].replace(",", ""))
    assert int(shown[0][1]) == len([line for line in rules if line.strip() and not line.startswith("#")])


def test_spark_options_are_those_that_the_source_takes() -> None:
    pytest.importorskip("pyarrow", reason="needs tidelog[spark]")
    from pyspark_tidelog.options import READ, WRITE

    tables = [line for line in (ROOT / "docs/spark.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for line in tables for name in re.findall(r"`([\w.]+)`", line.split("|")[1])}
    columns = {"key", "value", "partition", "offset", "timestamp", "timestampType", "headers"}
    assert named - columns == set(READ) | set(WRITE)


def test_every_line_of_the_brokers_log_is_explained() -> None:
    lines = sorted(set(logged()))
    openings = explained_openings()
    assert not [line for line in lines if not line.startswith(tuple(openings))], "docs/log-lines.md does not have them"
    assert not [opening for opening in openings if not any(line.startswith(opening) for line in lines)], "never logged"


def explained_openings() -> list[str]:
    """The first words of log lines, from the first column of every table of docs/log-lines.md."""
    rows = [row for row in (ROOT / "docs/log-lines.md").read_text().splitlines() if row.startswith("| `")]
    return [opening for row in rows for opening in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def logged() -> Iterator[str]:
    """The format strings of every line that a broker logs."""
    for path in sorted((ROOT / "src/tidelog").rglob("*.py")):
        if path.relative_to(ROOT / "src/tidelog").parts[0] in {"simulation", "wire", "demo", "pipelines"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Call(
                        # The third is `Decision.log`.
                        ast.Attribute(ast.Name("logger" | "log"), "info" | "warning" | "error" | "exception")
                        | ast.Attribute(ast.Name("out") | ast.Attribute(attr="out"), "log"),
                        [ast.Constant(str(line)), *_],
                    )
                    # The level is the first argument.
                    | ast.Call(ast.Attribute(ast.Name("logger" | "log"), "log"), [_, ast.Constant(str(line)), *_])
                ):
                    yield line
