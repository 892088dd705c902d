"""Text forms of ids. The expectations are the rules of `Uuid.fromString` of Kafka 4.3."""

import pytest

from tidelog.model.ids import uuid_from_text, uuid_text

RAW = bytes(range(240, 256))


@pytest.mark.parametrize("padding", ["", "=="])
def test_an_id_has_22_characters_and_perhaps_padding(padding: str) -> None:
    assert uuid_from_text(uuid_text(RAW) + padding) == RAW


def test_the_last_four_bits_are_ignored() -> None:
    assert uuid_from_text(uuid_text(RAW)[:-1] + "_") == RAW


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Yjwa-XTYSF28JSz9pdcuy",
        "Yjwa-XTYSF28JSz9pdcuyww",
        "Yjwa-XTYSF28JSz9pdcuyw=",
        "Yjwa-XTYSF28JSz9pdcuyw===",
        "Yjwa+XTYSF28JSz9pdcuyw",
        "Yjwa/XTYSF28JSz9pdcuyw",
        "Yjwa-XTYSF28JSz9pdcuyw\n",
        " Yjwa-XTYSF28JSz9pdcuyw",
        "Yjwa-XTY.SF28JSz9pdcuyw",
        "Yjwa-XTYSF28JSz9pdcuy\u00fc",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a 16-byte id"):
        uuid_from_text(text)
