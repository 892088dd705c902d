"""Play each scenario with a broker in the simulation (`transaction_play.py`), and compare the answers with its text.

The faults of the old protocol that Jepsen found have its names: write loss, aborted read, torn transaction. They must
not happen with transaction version 2. The scenarios of version 1 show what happens there, as in Kafka.

With TIDELOG_ACCEPT=1 in the environment the indented lines are written into the files, to be reviewed as text.
"""

import os
from pathlib import Path

import pytest
from transaction_play import Play

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_broker_answers_as_the_scenario_says(path: Path) -> None:
    expected = path.read_text()
    happened = Play(expected).run()
    if os.environ.get("TIDELOG_ACCEPT"):
        path.write_text(happened)
    assert happened == expected


def test_a_wrong_answer_is_noticed() -> None:
    text = "producer A\n    NONE epoch 7\n"
    assert Play(text).run() == text.replace("7", "0")
