"""How a broker for tests fails."""


class BrokerFailedError(RuntimeError):
    """The broker did not start, or ended by itself. The text is what it said."""
