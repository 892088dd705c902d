"""The error of a broker for tests."""


class BrokerFailedError(RuntimeError):
    """The broker did not start, or ended by itself. The text is the broker's message."""
