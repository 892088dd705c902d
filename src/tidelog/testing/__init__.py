"""Tidelog brokers for tests and for applications that embed one: `with Broker() as broker: broker.bootstrap`.

`Cluster(3)` is a cluster of brokers whose processes a test can kill, pause and start again.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker, BrokerFailedError
    from tidelog.testing.cluster import Cluster

__all__ = ["Broker", "BrokerFailedError", "Cluster"]


def __getattr__(name: str) -> Any:
    """Import a class only when it is used. Every run of pytest imports this package, which contains a pytest plugin."""
    if name == "Cluster":
        from tidelog.testing.cluster import Cluster

        return Cluster
    if name in __all__:
        from tidelog.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
