"""The settings of brokers with transactional clients, and the probabilities of the events in a client's life."""

from typing import NamedTuple

TRANSACTION_SETTINGS = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Odds(NamedTuple):
    late_requests: float = 0.03
    """That a copy of a request arrives later."""
    late_markers: float = 0.03
    """That a copy of a request with markers, which a coordinator has sent, arrives later."""
    crash: float = 0.08
    """That the client ends within a transaction, and begins again."""
    zombie: float = 0.3
    """That the client begins again, and its old process continues."""
    abort: float = 0.15
    """That the client aborts its transaction."""
    pause: float = 0.02
    """That the client stops within a transaction for about the transaction's timeout, or longer."""
    pending_offsets: float = 0.1
    """That a chain waits for up to a second before the end of its transaction, so that its offsets stay pending."""
