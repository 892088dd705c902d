"""The exactly-once sink. Each task writes in a transaction of its own and leaves it open. The driver then decides
which transactions are committed.

1. A task (`task`) opens a transaction, writes its rows, and reports the transaction to the driver.
2. The driver (`driver`) stores a decision: the list of the transactions of the micro-batch. A separate transaction of
   the driver writes the decision into the committed offsets of a group (`decision`).
3. The driver commits every transaction of the list. After a crash, a new driver reads the decision and continues here,
   before it decides anything else.
4. The driver marks the decision as finished. Until then, the transactional ids of the list are not used again, so that
   the coordinators can tell which of the listed transactions are committed.

A micro-batch without a decision did not happen: its transactions are aborted, and Spark runs it again. A micro-batch
with a decision is not written again, unless some of its transactions are proved to be aborted: then only their tasks
write again. The rows of a micro-batch become visible to readers with `read_committed`, one transaction after the other.

A failed or repeated task, or a task of a killed driver, may leave an open transaction that no decision lists. Such a
transaction is aborted after the next decision. It cannot be aborted earlier, because another driver of the same query
may be about to store a decision that lists it.
"""
