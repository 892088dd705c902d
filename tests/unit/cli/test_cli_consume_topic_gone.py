"""A topic that is deleted while `tidelog consume` reads it, alone and as a member of a group."""

import os
import re
import subprocess
import sys

import pytest

from cli_harness import tidelog
from tidelog.testing import Broker

LIMIT_S = 60


@pytest.mark.parametrize("of", [(), ("--group", "readers")], ids=["alone", "member"])
def test_reading_ends_with_the_reason(of: tuple[str, ...]) -> None:
    with Broker() as broker:
        where = ("-b", broker.bootstrap)
        tidelog("produce", "short-lived", *where, stdin=b"first\n")
        command = [sys.executable, "-m", "tidelog", "consume", "short-lived", "-B", *of, *where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert reader.stdout.readline() == b"first\n"
            tidelog("topic", "delete", "short-lived", "--yes", *where)
            assert reader.wait(LIMIT_S) == 1
            # In a group either comes first: the answer about a partition, or librdkafka's about the topic.
            assert re.fullmatch(
                r"Error: topic short-lived(, partition 0)?: no such topic \(tidelog topic list shows all\)\n",
                reader.stderr.read().decode(),
            )
