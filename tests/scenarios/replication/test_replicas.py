"""Play each scenario with real replicas (`replication_harness`), and compare the result with its text.

    brokers 3 min.isr=2     a partition on brokers 1 to 3
    elect 1                 the controller makes 1 the leader, in the next leader epoch; all brokers see it
        1 leader epoch=0 .. an indented line says what happened, or the new state of a broker that has changed

`log=a@0,b@1` lists the records with their leader epochs. With TIDELOG_ACCEPT=1 in the environment the indented lines
are written into the files, to be reviewed as text.
"""

import os
from pathlib import Path

import pytest

from replication_harness import Cluster

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


def _brokers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


class Scenario:
    def __init__(self) -> None:
        self.cluster = Cluster(0)
        self.shown: dict[int, str] = {}

    def run(self, text: str) -> str:
        """Return the text with what really happened."""
        lines = []
        for line in text.splitlines():
            if line.startswith(" "):
                continue
            lines.append(line)
            if line and not line.startswith("#"):
                verb, *words = line.split()
                options = dict(word.split("=", 1) for word in words if "=" in word)
                self.do(verb, [word for word in words if "=" not in word], options)
                lines += [f"    {happened}" for happened in self.cluster.said]
                self.cluster.said.clear()
                lines += [f"    {changed}" for changed in self.changes()]
        return "\n".join(lines) + "\n"

    def changes(self) -> list[str]:
        changed = []
        for broker, node in self.cluster.nodes.items():
            if self.shown.get(broker) != str(node):
                self.shown[broker] = str(node)
                changed.append(str(node))
        return changed

    def do(self, verb: str, words: list[str], options: dict[str, str]) -> None:
        cluster = self.cluster
        if verb == "brokers":
            self.cluster = Cluster(int(words[0]), min_isr=int(options.get("min.isr", 1)), fsync="fsync" in words)
            self.shown = {broker: str(node) for broker, node in self.cluster.nodes.items()}
        elif verb == "elect":
            cluster.elect(int(words[0]), _brokers(options["isr"]) if "isr" in options else None)
            if "seen" in options:
                cluster.publish(*_brokers(options["seen"]))
            else:
                cluster.publish()
        elif verb == "publish":
            cluster.publish(*(int(word) for word in words))
        elif verb == "produce":
            cluster.nodes[int(words[0])].produce(words[1], options.get("acks", "all"))
        elif verb == "fetch":
            for broker in words:
                cluster.fetch(int(broker), int(options.get("records", 1 << 30)))
        elif verb == "advance":
            cluster.now_ms += int(words[0])
            cluster.tick()
        elif verb == "decide":
            cluster.decide(loses_answer="lost" in words)
        elif verb == "fence":
            cluster.fenced[int(words[0])] = None
        elif verb == "unfence":
            del cluster.fenced[int(words[0])]
        elif verb == "min.isr":
            cluster.set_min_isr(int(words[0]))
        elif verb == "hold":
            cluster.holds_cuts = True
        elif verb == "hold-fetch":
            cluster.hold_fetch(int(words[0]))
        elif verb == "deliver-fetch":
            cluster.deliver_fetch()
        elif verb == "lose-log":
            cluster.lose_log(int(words[0]))
        else:
            self.do_node(verb, int(words[0]), words[1:])

    def do_node(self, verb: str, broker: int, words: list[str]) -> None:
        node = self.cluster.nodes[broker]
        if verb == "stop":
            node.stop()
        elif verb == "power-cut":
            node.stop()
            del node.log[int(words[0]) if words else node.synced :]
        elif verb == "start":
            node.start()
        elif verb == "sync":
            node.sync()
        elif verb == "delete":
            node.delete_before(int(words[0]))
        elif verb == "checkpoint":
            node.checkpoint()
        elif verb == "end-cut":
            node.end_cut()
        elif verb == "consumers":
            known = node.replica.knows_committed_end
            self.cluster.say(f"latest is {node.replica.high_watermark}" if known else "latest: OFFSET_NOT_AVAILABLE")
        else:
            raise ValueError(f"there is no command {verb!r}")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_happens_as_the_scenario_says(path: Path) -> None:
    expected = path.read_text()
    happened = Scenario().run(expected)
    if os.environ.get("TIDELOG_ACCEPT"):
        path.write_text(happened)
    assert happened == expected


def test_a_wrong_state_is_noticed() -> None:
    happened = Scenario().run("brokers 2\nelect 1\n    1 leader epoch=7\n")
    assert "epoch=7" not in happened
    assert "1 leader epoch=0" in happened
