#!/usr/bin/env python3
"""Start a Spark, and read a topic for each line on stdin. bench/spark.py runs this with the Python of that Spark.

    spark_reader.py FORMAT BOOTSTRAP TOPIC CORES JARS

FORMAT is tidelog or kafka; JARS are the connector's, joined by commas, or empty. Prints a line of JSON with the
version. For each line of standard input it then runs a batch read of the whole topic with an aggregate over `value`,
and prints a line of JSON.
"""

import json
import os
import sys
import time

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def session(cores: str, jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in (SETTINGS | ({"spark.jars": jars} if jars else {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    form, bootstrap, topic, cores, jars = sys.argv[1:]
    spark = session(cores, jars)
    print(json.dumps({"version": spark.version}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        frame = spark.read.format(form).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
        [row] = frame.selectExpr("count(*)", "sum(length(value))").collect()
        print(json.dumps({"seconds": time.perf_counter() - began, "rows": row[0], "bytes": row[1]}), flush=True)


main()
