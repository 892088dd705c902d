"""Compile the loops of the source and the sink: `python -m pyspark_tidelog.prepare`.

The machine code is cached (see `compiled`). Without this step, each worker of the first query on a machine compiles
the loops, which takes some seconds.
"""

import numpy as np
import pyarrow as pa

from pyspark_tidelog.decode import Payload, decoder
from pyspark_tidelog.decode_kernel import WANT_HEADERS, WANT_KEY, WANT_VALUE
from pyspark_tidelog.outgoing import BatchEncoder
from tidelog.wire.batches import HEADER_BYTES, BatchHeader, Codec


def prepare() -> None:
    """Encode one row as a record batch and decode it again."""
    sink = BatchEncoder("topic", lambda _: 1, lambda: 0, batch_bytes=1024, codec=Codec.NONE, first_partition=0)
    [[batch]] = sink.batches(pa.RecordBatch.from_pylist([{"key": b"key", "value": b"value"}])).values()
    data = np.frombuffer(batch, np.uint8)
    data.flags.writeable = False
    payload = Payload(BatchHeader(batch), data, HEADER_BYTES, len(batch))
    decoded = decoder()([payload], 0, 1, WANT_KEY | WANT_VALUE | WANT_HEADERS)
    assert decoded.values is not None
    assert decoded.values.to_pylist() == [b"value"]


if __name__ == "__main__":
    prepare()
