"""Find the topics that match the option `subscribePattern`. It is a regular expression of Java, and Java evaluates
it.

Spark's Kafka source compiles the option with `java.util.regex.Pattern` and chooses every topic whose name contains a
match. Python's `re` also accepts many expressions of Java, but some of them match different texts in Python and Java.
Spark plans a read in a Python process that cannot reach Spark's own JVM. Therefore a small JVM of the same Java is
started to evaluate the expression, and stopped afterwards.
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
    # `matching_names` calls methods of a Java stream. The stream's class in java.util.stream is not public.
    "--add-opens=java.base/java.util.stream=ALL-UNNAMED",
)


class TopicPattern:
    """The expression, and a cache of the names that Java has checked. After the first call of `topics_among`, Java is
    started only for new names.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._compiled = False
        self._is_match: dict[str, bool] = {}

    def topics_among(self, names: Iterable[str]) -> set[str]:
        """Return the names that contain a match. Raises OptionError if the expression is invalid or Java cannot run."""
        requested_names = set(names)
        if (new_names := requested_names - self._is_match.keys()) or not self._compiled:
            with java_regex() as java:
                matching = java.matching_names(self._text, new_names)
            self._is_match |= {name: name in matching for name in new_names}
            self._compiled = True
        return {name for name in requested_names if self._is_match[name]}


class JavaRegex:
    """Evaluates regular expressions of Java in a JVM."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def matching_names(self, text: str, names: Iterable[str]) -> set[str]:
        """Return the names that contain a match of the expression. Raises OptionError if Java rejects the expression.

        No name may contain a line feed, because the names are passed to Java as the lines of one text.
        """
        from py4j.protocol import Py4JJavaError

        lines = "\n".join(names)
        java = self._jvm.java.util
        try:
            contains_match = java.regex.Pattern.compile(text).asPredicate()
            split = java.regex.Pattern.compile("\n").splitAsStream(lines)
            matching: str = split.filter(contains_match).collect(java.stream.Collectors.joining("\n"))
        except Py4JJavaError as error:
            raise OptionError(_error_text(text, error.java_exception)) from None
        return set(matching.split("\n")) if matching else set()


def _error_text(text: str, exception: Any) -> str:
    option = f"option subscribePattern {text!r}"
    error_class: str = exception.getClass().getSimpleName()
    if error_class != "PatternSyntaxException":  # for example StackOverflowError
        return f"Java cannot match {option} with the topics' names: {exception.toString()}"
    position: int = exception.getIndex()  # in code points, like an index in Python; -1 if Java reports none
    place = f" near position {position}, after {text[:position]!r}" if position >= 0 else ""
    return f"{option} is not a regular expression of Java: {exception.getDescription()}{place}"


@contextmanager
def java_regex() -> Iterator[JavaRegex]:
    """Start a JVM. It is stopped when the `with` block or this process ends. Raises OptionError if it cannot start."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    try:
        java = java_of_spark()
    except NoJava as error:
        raise OptionError(
            f"option subscribePattern is a regular expression of Java, but Java cannot run: {error}"
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
                output = (port + process.stderr.read(1000)).strip()
                raise OptionError(f"option subscribePattern needs Java, and {java} does not start: {output}")
            # Without memory management, py4j does not release the JVM's objects one by one. Releasing them would fail
            # after the JVM has ended.
            parameters = GatewayParameters(port=int(port), auth_token=token, enable_memory_management=False)
            gateway = JavaGateway(gateway_parameters=parameters)
            try:
                yield JavaRegex(gateway.jvm)
            finally:
                gateway.close()
        finally:
            process.kill()


def _py4j_jar() -> Path:
    """Return the jar of the py4j that Spark uses. Raises OptionError if Spark's jars are not found."""
    import pyspark

    homes = [os.environ.get("SPARK_HOME"), str(Path(pyspark.__file__).parent)]
    for home in filter(None, homes):
        for jar in sorted(Path(home, "jars").glob("py4j-*.jar")):
            return jar
    raise OptionError(
        "option subscribePattern needs the jar of py4j to call Java: "
        "there is no jars/py4j-*.jar in SPARK_HOME or in PySpark's directory"
    )
