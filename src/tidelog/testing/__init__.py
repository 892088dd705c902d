"""A Tidelog broker for tests and for applications that embed one: `with Broker() as broker: broker.bootstrap`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker, BrokerFailedError

__all__ = ["Broker", "BrokerFailedError"]


def __getattr__(name: str) -> Any:
    """Import the broker when it is first used: pytest loads this package in every run, for the plugin."""
    if name in __all__:
        from tidelog.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
