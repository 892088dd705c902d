"""SIGTERM in the middle of work: what was taken is answered, what is acknowledged is there, the next start is clean."""

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from workload import PARTITIONS, TOPIC, Log, Workload, wait_until

from process_harness import amount
from tidelog.testing import Broker

STOPS = amount(3, 20)


def test_orderly_stops_under_load(tmp_path: Path) -> None:
    with Broker(process=True, data=tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            created.result()
        workload = Workload(broker)
        workload.start()
        for _ in range(STOPS):
            goal = workload.total + 20_000
            wait_until(lambda goal=goal: workload.total >= goal or bool(workload.wrong), "the producer goes on")  # type: ignore[misc]
            broker.restart()  # raises unless the exit code is 0
            assert not workload.wrong, workload.wrong[:5]
            assert "torn" not in broker.log()
            assert "rebuilt" not in broker.log()
        workload.stop()
        assert not workload.wrong, workload.wrong[:5]
        log = Log(broker)
        for partition, end in enumerate(workload.acknowledged):
            assert log.end(partition) == end
            log.check(partition, 0, end)
        log.close()
