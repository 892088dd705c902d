"""A pipeline on a standalone Spark cluster: a master and two workers, whose Python has no Tidelog."""

import json
import os
import re
import selectors
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from subprocess import Popen

IS_FULL = os.environ.get("TIDELOG_FULL") == "1"
LIMIT_S = 280
RECORDS = 2_000

PIPELINE = """
from pyspark.sql import functions as f
from tidelog.pipelines import json, pipeline, topic

@pipeline(
    source=topic("cluster-sales", value=json("product string, quantity int")),
    sink=topic("cluster-totals", value=json(), key="product", partitions=2),
    output_mode="update",
    dead_letters="cluster-dead",
)
def cluster_totals(sales):
    return sales.groupBy("product").agg(f.sum("quantity").alias("units"))
"""


@contextmanager
def daemon(environment: dict[str, str], ready: str, *arguments: str) -> "Iterator[str]":
    """Run a daemon of Spark. Yield the line of its log in which `ready` is found."""
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin/spark-class"), *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield line_with(process, ready)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def line_with(process: "Popen[bytes]", ready: str) -> str:
    assert process.stdout is not None
    text = b""
    deadline = time.monotonic() + LIMIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            block = os.read(process.stdout.fileno(), 65536)
            assert block, f"the daemon ended: {text.decode()}"
            text += block
            if found := re.search(ready, text.decode()):
                return found[0]
    raise AssertionError(f"no line with {ready} in {text.decode()}")


def python_without_tidelog(directory: Path) -> Path:
    """Write a program with the name of this Python. It finds the packages of the environment, but not Tidelog, which is
    installed there as a link to the sources.
    """
    directory.mkdir()
    program = directory / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = sysconfig.get_path("purelib")
    program.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program


def can_import(program: Path, python_path: str) -> bool:
    environment = os.environ | {"PYTHONPATH": python_path}
    command = [str(program), "-c", "import pyspark_tidelog, tidelog, cramjam"]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not IS_FULL, reason="starts five JVMs, which takes minutes; it needs TIDELOG_FULL=1")
def test_two_workers_without_tidelog_run_a_pipeline(bootstrap: str, tmp_path: Path) -> None:
    from pyspark_tidelog.java import NoJava, ensure_java

    try:
        java_home = str(ensure_java())
    except NoJava as missing:
        pytest.skip(str(missing))
    write_sales(bootstrap)
    (tmp_path / "totals.py").write_text(PIPELINE)
    archive = tmp_path / "packages.tar.gz"
    tidelog = [sys.executable, "-m", "tidelog", "pipeline"]
    present = ["numpy", "pyarrow", "numba", "llvmlite", "pandas", "python-dateutil", "pytz", "tzdata", "protobuf"]
    options = [option for name in present for option in ("--without", name)]
    subprocess.run([*tidelog, "pack", str(archive), *options], check=True, timeout=LIMIT_S)
    program = python_without_tidelog(tmp_path / "bin")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(unpacked)], check=True, timeout=LIMIT_S)
    assert (can_import(program, ""), can_import(program, str(unpacked))) == (False, True)

    environment = os.environ | {
        "JAVA_HOME": java_home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
    }
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with daemon(environment, r"spark://127\.0\.0\.1:\d+", *master) as url:
        works = [tmp_path / "work-1", tmp_path / "work-2"]
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "600m"]
        worker += ["--webui-port", "0", url, "--work-dir"]
        registered = "Successfully registered with master"
        with (
            daemon(environment, registered, *worker, str(works[0])),
            daemon(environment, registered, *worker, str(works[1])),
        ):
            command = [*tidelog, "run", str(tmp_path / "totals.py"), "--once", "--json", "--bootstrap", bootstrap]
            command += ["--state", str(tmp_path / "state"), "--master", url, "--archive", str(archive)]
            settings = ["spark.driver.memory=512m", "spark.executor.memory=512m", "spark.sql.shuffle.partitions=2"]
            settings += ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
            command += [option for text in settings for option in ("--set", text)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["state"], last["queries"][0]["rows"], last["queries"][0]["dead_letters"]) == ("done", RECORDS + 1, 1)
    assert totals(bootstrap) == {"tea": RECORDS // 2, "coffee": RECORDS}
    assert all(list(work.glob("app-*/*")) for work in works), "only one of the workers has run an executor"


def write_sales(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("cluster-sales", 2)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        is_tea = number % 2 == 0
        value = json.dumps({"product": "tea" if is_tea else "coffee", "quantity": 1 if is_tea else 2})
        producer.produce("cluster-sales", value=value, partition=number % 2)
    producer.produce("cluster-sales", value="broken", partition=0)
    assert producer.flush(30) == 0


def totals(bootstrap: str) -> dict[str, int]:
    """Return the newest total of each product."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": True})
    consumer.assign([TopicPartition("cluster-totals", number, 0) for number in range(2)])
    newest: dict[str, int] = {}
    ended = 0
    while ended < 2:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended += 1
        else:
            newest[message.key().decode()] = json.loads(message.value())["units"]
    consumer.close()
    return newest
