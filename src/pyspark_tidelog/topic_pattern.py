"""Which topics `subscribePattern` chooses. It is a regular expression of Java, and Java itself is asked.

Spark's Kafka source compiles the option with `java.util.regex.Pattern` and takes every topic in whose name the
expression is found anywhere. Python's `re` gives other answers for many expressions, without an error. Spark plans a
read in a Python process that cannot reach Spark's own JVM, so a small JVM of that same Java is started for the question
and ends with it.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.java import NoJava, java_of_spark

JVM_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # py4j calls methods of the stream's class, which is not public.
    "--add-opens=java.base/java.util.stream=ALL-UNNAMED",
)


class TopicPattern:
    """The expression, and what Java has said of the names so far: Java is started for names that are new only."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._compiled = False
        self._found: dict[str, bool] = {}

    def topics_among(self, names: Iterable[str]) -> set[str]:
        """The names in which the expression is found. Raises OptionError, also where Java cannot run."""
        present = set(names)
        if (unknown := present - self._found.keys()) or not self._compiled:
            with java_regex() as java:
                found = java.names_found(self._text, unknown)
            self._found |= {name: name in found for name in unknown}
            self._compiled = True
        return {name for name in present if self._found[name]}


class JavaRegex:
    """Calls into a JVM."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def names_found(self, text: str, names: Iterable[str]) -> set[str]:
        """Those in which the regular expression is found. No name may hold a line feed. Raises OptionError."""
        from py4j.protocol import Py4JJavaError

        lines = "\n".join(names)
        java = self._jvm.java.util
        try:
            chosen = java.regex.Pattern.compile(text).asPredicate()
            split = java.regex.Pattern.compile("\n").splitAsStream(lines)
            found: str = split.filter(chosen).collect(java.stream.Collectors.joining("\n"))
        except Py4JJavaError as error:
            raise OptionError(_refusal(text, error.java_exception)) from None
        return set(found.split("\n")) if found else set()


def _refusal(text: str, exception: Any) -> str:
    option = f"option subscribePattern {text!r}"
    kind: str = exception.getClass().getSimpleName()
    if kind != "PatternSyntaxException":  # a StackOverflowError, say
        return f"Java cannot match {option} with the topics' names: {exception.toString()}"
    position: int = exception.getIndex()  # counted in code points, as Python does; -1 where Java knows none
    where = f" near position {position}, after {text[:position]!r}" if position >= 0 else ""
    return f"{option} is no regular expression of Java: {exception.getDescription()}{where}"


@contextmanager
def java_regex() -> Iterator[JavaRegex]:
    """A JVM that ends with the block, or when this process ends. Raises OptionError where it does not start."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    try:
        java = java_of_spark()
    except NoJava as missing:
        raise OptionError(
            f"option subscribePattern is a regular expression of Java, which cannot run: {missing}"
        ) from None
    command = [str(java), *JVM_OPTIONS, "-classpath", str(_py4j_jar())]
    command += ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise OptionError(f"option subscribePattern needs Java, and {java} does not start: {error.strerror}") from None
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            port, token = process.stdout.readline().strip(), process.stdout.readline().strip()
            if not port.isdecimal():
                said = (port + process.stderr.read(1000)).strip()
                raise OptionError(f"option subscribePattern needs Java, and {java} does not start: {said}")
            # The JVM's objects end with it: none is released one by one, which would fail once the JVM is gone.
            parameters = GatewayParameters(port=int(port), auth_token=token, enable_memory_management=False)
            gateway = JavaGateway(gateway_parameters=parameters)
            try:
                yield JavaRegex(gateway.jvm)
            finally:
                gateway.close()
        finally:
            process.kill()


def _py4j_jar() -> Path:
    """The jar of the py4j that Spark uses. Raises OptionError where Spark's jars are not beside it."""
    import pyspark

    homes = [os.environ.get("SPARK_HOME"), str(Path(pyspark.__file__).parent)]
    for home in filter(None, homes):
        for jar in sorted(Path(home, "jars").glob("py4j-*.jar")):
            return jar
    raise OptionError(
        "option subscribePattern needs the jar of py4j to ask Java: "
        "there is no jars/py4j-*.jar in SPARK_HOME or beside PySpark"
    )
