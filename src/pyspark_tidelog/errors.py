"""The errors with which a Spark job of this source fails."""


class OptionError(ValueError):
    """An option is missing, unknown, malformed, or contradicts another. The message names the option and the remedy."""


class SchemaError(ValueError):
    """The columns that are read or written do not fit the columns of a topic."""


class DataLoss(RuntimeError):
    """Offsets that were to be read were deleted. With `failOnDataLoss=false` the query reads the remaining offsets
    instead.
    """


class DamagedBatch(RuntimeError):
    """The bytes are not those of the record batch that the producer wrote, or are no record batch."""
