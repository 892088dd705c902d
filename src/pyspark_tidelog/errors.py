"""What a job of this source fails with."""


class OptionError(ValueError):
    """An option is missing, unknown, malformed, or at odds with another. Names it and the remedy."""


class SchemaError(ValueError):
    """The columns asked for, or given to be written, are not what a topic holds."""


class DataLoss(RuntimeError):
    """Offsets that were to be read are no longer there. `failOnDataLoss=false` goes on with what is left instead."""


class DamagedBatch(RuntimeError):
    """A record batch whose bytes are not what its producer wrote, or not a record batch at all."""
