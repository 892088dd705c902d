"""The errors with which the source and the sink end a Spark job, and a helper for their messages."""


class OptionError(ValueError):
    """An option is missing, unknown or malformed, or contradicts another option. The message names the option and
    the remedy.
    """


class SchemaError(ValueError):
    """A column, a value in it, a schema or an option of a format is missing or cannot be used."""


class WriteError(RuntimeError):
    """An exactly-once write failed. The message names the micro-batch and the remedy."""


class DataLoss(RuntimeError):
    """Offsets that the query had to read are not in the log. With `failOnDataLoss=false` the query reads the
    remaining offsets instead.
    """


class DamagedBatch(RuntimeError):
    """The bytes of a record batch have changed since the producer wrote them, or they are not a record batch that this
    source can decode.
    """


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 attempt, 2 attempts."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
