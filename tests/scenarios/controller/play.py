"""Histories of the controller as reviewed text: events of brokers and partitions, and the decisions about them.

    start 1 2 3                    register and unfence brokers
    create t 0=1,2,3               a topic, by an assignment or by partitions=2 factor=3
        t-0 led by 1 in epoch 0 (partition epoch 0) replicas=1,2,3 isr=1,2,3
    lease-end 1                    the broker's lease ended
        t-0 led by 2 in epoch 1 (partition epoch 1) replicas=1,2,3 isr=2,3

A line without indent is an event; an indented line is the controller's answer to it, or the new state of a partition
that it changed. The events:

    config KEY=VALUE ...           settings of the controller; only in the first lines
    feature NAME LEVEL             finalize a level
    start B ... [rack=..]          register, and send a heartbeat that has followed the journal
    register B [run=R] [boot=..] [disk=..] [synced] [epoch=E] [lease=valid] [levels=none]
    beat B [followed=P] [fence] [shutdown] [epoch=E] [others=B:P,..] [position=P]
    lease-end B [run=R]            unregister B
    create T ..., grow T TOTAL ..., set T|cluster|broker-B SETTING=VALUE
    isr B t-0 MEMBERS [le=E] [pe=E] [epochs=E,..] [be=E] [recovery=N]    the ISR that broker B proposes
    elect preferred|unclean t-0 ...|all      rebalance      elect-leaderless
    reassign t-0=1,2 ... [same-factor]       cancel t-0     reassignments
"""

from collections.abc import Callable
from typing import Any

from metadata_harness.journal_life import JournalLife, directory, states
from tidelog.metadata.alterations import BROKER_RESOURCE, TOPIC_RESOURCE, Alteration, Change, Operation, alter_configs
from tidelog.metadata.controller import MorePartitions, NewTopic, create_partitions, create_topics
from tidelog.metadata.elections import elect_leaderless, elect_leaders, rebalance_leaders
from tidelog.metadata.features import LevelChange, change_feature_level
from tidelog.metadata.isr_changes import IsrProposal, alter_partitions
from tidelog.metadata.reassignment import Reassignment, alter_reassignments, list_reassignments
from tidelog.metadata.records import RECOVERING, PartitionState
from tidelog.metadata.registration import fence_broker, unregister_broker
from tidelog.model.steps import run_all
from tidelog.wire.errors import ApiError


class Play:
    """One run of a scenario. `run` returns its text with the answers that came."""

    def __init__(self, text: str) -> None:
        self._events = [line for line in text.splitlines() if not line.startswith(" ")]
        first = next((line for line in self._events if line.startswith("config ")), "config")
        static = dict(word.split("=") for word in first.split()[1:])
        self.life = JournalLife(**{name.replace(".", "_"): value for name, value in static.items()})
        self._answers: list[str] = []

    def run(self) -> str:
        lines: list[str] = []
        for event in self._events:
            lines.append(event)
            words = event.split()
            if not words or event.startswith(("#", "config ")):
                continue
            before = states(self.life.image)
            self._answers = []
            try:
                verb: Callable[[list[str], dict[str, str]], None] = getattr(self, "_" + words[0].replace("-", "_"))
                options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
                verb([word for word in words[1:] if "=" not in word], options)
            except ApiError as error:
                self._answers.append(error.code.name + (f": {error.message}" if error.message else ""))
            for (topic, partition), state in states(self.life.image).items():
                if before.get((topic, partition)) != state:
                    self._answers.append(f"{topic}-{partition} {describe(state)}")
            lines += [f"    {answer}" for answer in self._answers]
        self.life.check_replay()
        return "\n".join(lines) + "\n"

    def _say(self, name: str, result: Any) -> None:
        message = f": {result.message}" if result.message else ""
        self._answers.append(f"{name} {result.error.name}{message}" if result.error else f"{name} done")

    # Brokers

    def _feature(self, words: list[str], options: dict[str, str]) -> None:
        change = LevelChange(words[0], int(words[1]), "downgrade" in words)
        self.life.decide(change_feature_level(self.life.image, change, self.life.config))

    def _start(self, words: list[str], options: dict[str, str]) -> None:
        for broker in words:
            self.life.start(int(broker), **self._registration(int(broker), [], options))

    def _register(self, words: list[str], options: dict[str, str]) -> None:
        broker, other_run_has_lease = int(words[0]), options.get("lease") == "valid"
        fields = self._registration(broker, words, options)
        epoch = self.life.register(broker, options.get("run", ""), other_run_has_lease=other_run_has_lease, **fields)
        self._answers.append(f"broker epoch {epoch}")

    def _registration(self, broker: int, words: list[str], options: dict[str, str]) -> dict[str, Any]:
        fields: dict[str, Any] = {"is_synced": "synced" in words}
        if "boot" in options:
            fields["boot_id"] = options["boot"]
        if "disk" in options:
            fields["directories"] = (directory(int(options["disk"])),)
        if "epoch" in options:
            fields["previous_epoch"] = int(options["epoch"])
        if "rack" in options:
            fields["rack"] = options["rack"]
        if "levels" in options:
            fields["features"] = {}
        return fields

    def _beat(self, words: list[str], options: dict[str, str]) -> None:
        fields: dict[str, Any] = {"wants_fence": "fence" in words, "wants_shutdown": "shutdown" in words}
        if "followed" in options:
            fields["followed"] = int(options["followed"])
        if "epoch" in options:
            fields["broker_epoch"] = int(options["epoch"])
        if "others" in options:
            pairs = (pair.split(":") for pair in options["others"].split(","))
            fields["followed_positions"] = {int(broker): int(position) for broker, position in pairs}
            fields["shutdown_position"] = int(options["position"])
        reply = self.life.beat(int(words[0]), **fields)
        said = ["caught up" if reply.is_caught_up else "behind", "fenced" if reply.is_fenced else "unfenced"]
        self._answers.append(", ".join(said + (["may stop"] if reply.should_shut_down else [])))

    def _lease_end(self, words: list[str], options: dict[str, str]) -> None:
        broker = int(words[0])
        incarnation = options.get("run", self.life.image.brokers[broker].incarnation)
        self.life.decide(fence_broker(self.life.image, broker, incarnation, self.life.config))

    def _unregister(self, words: list[str], options: dict[str, str]) -> None:
        self.life.decide(unregister_broker(self.life.image, int(words[0]), self.life.config))

    # Topics and settings

    def _create(self, words: list[str], options: dict[str, str]) -> None:
        partitions, factor = int(options.pop("partitions", -1)), int(options.pop("factor", -1))
        assignments = [(int(number), _ids(options[number])) for number in options if number.isdigit()]
        topic_settings = [(name, value) for name, value in options.items() if not name.isdigit()]
        new = NewTopic(words[0], partitions, factor, assignments, topic_settings)
        (result,) = self.life.decide(create_topics(self.life.image, [new], self.life.config, self.life.new_id))
        self._say(words[0], result)

    def _grow(self, words: list[str], options: dict[str, str]) -> None:
        assignments = [_ids(value) for value in options.values()] or None
        more = MorePartitions(words[0], int(words[1]), assignments)
        (result,) = self.life.decide(create_partitions(self.life.image, [more]))
        self._say(words[0], result)

    def _set(self, words: list[str], options: dict[str, str]) -> None:
        ((name, value),) = options.items()
        change = Change(name, Operation.SET, value) if value else Change(name, Operation.DELETE, None)
        target = {"cluster": (BROKER_RESOURCE, ""), "broker-1": (BROKER_RESOURCE, "1")}.get(words[0])
        alteration = Alteration(*(target or (TOPIC_RESOURCE, words[0])), [change])
        (result,) = self.life.decide(alter_configs(self.life.image, [alteration], self.life.config))
        self._say(words[0], result)

    # Leaders and replicas

    def _isr(self, words: list[str], options: dict[str, str]) -> None:
        broker, members, image = int(words[0]), _ids(words[2]), self.life.image
        topic_name, _, number = words[1].rpartition("-")
        topic = image.topics[topic_name]
        state = topic.partitions[int(number)]
        epochs = [image.brokers[member].epoch if member in image.brokers else -1 for member in members]
        if "epochs" in options:
            epochs = list(_ids(options["epochs"]))
        proposal = IsrProposal(
            topic.topic_id,
            int(number),
            int(options.get("le", state.leader_epoch)),
            int(options.get("pe", state.partition_epoch)),
            list(zip(members, epochs, strict=True)),
            int(options.get("recovery", 0)),
        )
        broker_epoch = int(options.get("be", image.brokers[broker].epoch if broker in image.brokers else -1))
        decision = alter_partitions(image, broker, broker_epoch, [proposal], self.life.config)
        (result,) = self.life.decide(decision)
        self._answers.append(f"{words[1]} {result.error.name}" if result.error else f"{words[1]} done")

    def _elect(self, words: list[str], options: dict[str, str]) -> None:
        election_type = ["preferred", "unclean"].index(words[0])
        partitions = None if words[1] == "all" else [_partition(word) for word in words[1:]]
        results = self.life.decide(elect_leaders(self.life.image, election_type, partitions, self.life.config))
        for result in results:
            self._say(f"{result.topic}-{result.partition}", result)

    def _rebalance(self, words: list[str], options: dict[str, str]) -> None:
        self.life.decide(rebalance_leaders(self.life.image, self.life.config))

    def _elect_leaderless(self, words: list[str], options: dict[str, str]) -> None:
        self.life.decide(elect_leaderless(self.life.image, self.life.config))

    def _reassign(self, words: list[str], options: dict[str, str]) -> None:
        self._alter([Reassignment(*_partition(name), _ids(ids)) for name, ids in options.items()], words)

    def _cancel(self, words: list[str], options: dict[str, str]) -> None:
        self._alter([Reassignment(*_partition(name), None) for name in words], [])

    def _alter(self, reassignments: list[Reassignment], words: list[str]) -> None:
        decision = alter_reassignments(
            self.life.image, reassignments, self.life.config, allow_factor_change="same-factor" not in words
        )
        for result in self.life.decide(decision):
            self._say(f"{result.topic}-{result.partition}", result)

    def _reassignments(self, words: list[str], options: dict[str, str]) -> None:
        for topic, ongoing in run_all(list_reassignments(self.life.image)).items():
            for partition, replicas, adding, removing in ongoing:
                lists = f"replicas={_text(replicas)} adding={_text(adding)} removing={_text(removing)}"
                self._answers.append(f"{topic}-{partition} {lists}")


def describe(state: PartitionState) -> str:
    parts = ["without leader" if state.leader == -1 else f"led by {state.leader}", f"in epoch {state.leader_epoch}"]
    parts.append(f"(partition epoch {state.partition_epoch})")
    parts.append(f"replicas={_text(state.replicas)} isr={_text(state.isr)}")
    for name in ("elr", "last_known_elr", "adding", "removing"):
        if getattr(state, name):
            parts.append(f"{name}={_text(getattr(state, name))}")
    return " ".join(parts + (["recovering"] if state.recovery == RECOVERING else []))


def _partition(text: str) -> tuple[str, int]:
    topic, _, number = text.rpartition("-")
    return topic, int(number)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _text(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "-"
