"""Run Kafka's command-line tools and performance tests in one JVM, several at once (java/Tools.java)."""

import base64
import itertools
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from interop_harness.suite import LIMIT_S
from interop_harness.target import KAFKA, kafka_jars

START_S = 120.0
"""Time limit for the start of the JVM and for its first tool, in seconds. A machine under load takes long."""
PROGRAM = Path(__file__).parent / "java/Tools.java"
CLASSES = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class RunningTool:
    """A running tool. `out` and `err` hold its output so far."""

    def __init__(self, tools: "JavaTools", number: str) -> None:
        self._tools = tools
        self._number = number
        self._changed = threading.Condition()
        self._printed = {"out": bytearray(), "err": bytearray()}
        self._code: int | None = None

    @property
    def out(self) -> str:
        return self._printed["out"].decode()

    @property
    def err(self) -> str:
        return self._printed["err"].decode()

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Wait until `out` has `count` matches. Raises AssertionError if the tool ends first, or after LIMIT_S."""
        found = self._wait(lambda: len(re.findall(pattern, self.out)) >= count or self._code is not None)
        assert found, f"no {pattern!r} in {LIMIT_S:.0f} s: {self._tail()}"
        assert len(re.findall(pattern, self.out)) >= count, f"ended without {pattern!r}: {self._tail()}"

    def stop(self) -> Ran:
        """Stop the tool as Ctrl-C does, with its shutdown hooks, and return when it has ended."""
        self._tools.send(f"stop {self._number}")
        return self.wait()

    def wait(self, limit_s: float = LIMIT_S) -> Ran:
        """Wait for the tool's end. Raises AssertionError after `limit_s`."""
        has_ended = self._wait(lambda: self._code is not None, limit_s)
        assert has_ended, f"still runs after {limit_s:.0f} s: {self._tail()}"
        assert self._code is not None
        return Ran(self._code, self.out, self.err)

    def _tail(self) -> str:
        return self.out[-2000:] + self.err[-2000:]

    def _wait(self, reached: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(reached, limit_s))

    def handle_line(self, kind: str, value: str) -> None:
        """Handle a line that Tools.java printed for this tool: `exit CODE`, or output as `out BYTES` or `err BYTES`."""
        with self._changed:
            if kind == "exit":
                self._code = int(value)
            else:
                self._printed[kind] += base64.b64decode(value)
            self._changed.notify_all()


class JavaTools:
    """The JVM, for a `with` block. The first use downloads the jars."""

    def __init__(self) -> None:
        subprocess.run([*KAFKA, "classpath"], check=True, stdout=subprocess.DEVNULL)
        self._errors = tempfile.TemporaryFile(prefix="interop-java-")  # noqa: SIM115 - closed by __exit__
        jars = kafka_jars()
        options = [
            "-Xmx512M",
            "-XX:TieredStopAtLevel=1",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            f"-Dlog4j2.configurationFile={jars}/log4j2.xml",
        ]
        self._process = subprocess.Popen(
            ["java", *options, "-cp", f"{jars}/*", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._numbers = map(str, itertools.count(1))
        self._running: dict[str, RunningTool] = {}
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, name="java-tools", daemon=True)
        self._reader.start()

    def start(self, name: str, *arguments: object, input: bytes = b"") -> RunningTool:
        number = next(self._numbers)
        tool = self._running[number] = RunningTool(self, number)
        self.send(" ".join(["run", number, CLASSES[name], _word(input), *(_word(str(a).encode()) for a in arguments)]))
        return tool

    def run(
        self, name: str, *arguments: object, input: bytes = b"", code: int | None = 0, limit_s: float = LIMIT_S
    ) -> Ran:
        """Run a tool until it ends. `code` is the expected exit code; None accepts any."""
        ran = self.start(name, *arguments, input=input).wait(limit_s)
        assert code is None or ran.code == code, f"{name} ended with {ran.code}: {ran.out[-2000:]}{ran.err[-2000:]}"
        return ran

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, kind, value = line.split()
            if kind == "ready":
                self._ready.set()
                continue
            self._running[number].handle_line(kind, value)
        for tool in self._running.values():
            if tool._code is None:
                tool.handle_line("exit", "-1")

    def __enter__(self) -> "JavaTools":
        self._ready.wait(START_S)  # if it ends without being ready, the first use says so
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._errors.close()


def _word(text: bytes) -> str:
    return base64.b64encode(text).decode() or "-"
