"""A Tidelog broker for tests and for applications that carry their own: `with Broker() as broker: broker.bootstrap`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    """Import the broker when somebody asks for it: pytest loads this package in every run, for the plugin."""
    if name == "Broker":
        from tidelog.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
