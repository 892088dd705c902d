"""A client of Kafka's wire protocol: metadata, offsets, groups, producing and fetching whole record batches; TLS and
SASL.

`connection`, `cluster` and `operations` do no I/O: they convert calls into requests, and response frames into results
and decisions. `blocking` does their I/O on ordinary sockets. `each`, `groups` and `partitions` work on many items, and
return a result or an error for each item. `reader` reads partitions continuously. Read `operations` first, then
`blocking`. `channel` is an asynchronous connection for brokers and simulated clients: it uses a real or a simulated
network. It is opened again after a failure.
"""
