"""The error of a broker for tests."""


class BrokerFailedError(RuntimeError):
    """The broker did not start, ended by itself, or did not stop cleanly. The text contains the broker's message."""
