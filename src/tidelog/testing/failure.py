"""The error of a broker for tests."""


class BrokerFailedError(RuntimeError):
    """The broker did not start, ended by itself, or did not stop in order. The text contains the broker's message."""
