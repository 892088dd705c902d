"""Each scenario gives the controller's answers that it says.

With TIDELOG_ACCEPT=1 in the environment the answers are written into the files, to be reviewed as text.
"""

import os
from pathlib import Path

import pytest
from play import Play

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_controller_answers_as_the_scenario_says(path: Path) -> None:
    expected = path.read_text()
    happened = Play(expected).run()
    if os.environ.get("TIDELOG_ACCEPT"):
        path.write_text(happened)
    assert happened == expected


def test_a_wrong_answer_is_noticed() -> None:
    text = "start 1 2\ncreate t 0=1,2\nlease-end 1\n    t-0 led by 1\n"
    assert "t-0 led by 2 in epoch 1" in Play(text).run()
