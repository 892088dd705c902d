"""Play each scenario with real brokers in the simulation (`cluster_play.py`), and compare the answers with its text.

With TIDELOG_ACCEPT=1 in the environment the indented lines are written into the files, to be reviewed as text.
"""

import os
from pathlib import Path

import pytest
from cluster_play import Play

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_brokers_answer_as_the_scenario_says(path: Path) -> None:
    expected = path.read_text()
    happened = Play(expected).run()
    if os.environ.get("TIDELOG_ACCEPT"):
        path.write_text(happened)
    assert happened == expected


def test_a_wrong_answer_is_noticed() -> None:
    text = "brokers 2\ntopic replicas=1,2\nproduce 1 a\n    NONE at 7\n"
    assert Play(text).run() == text.replace("at 7", "at 0")
