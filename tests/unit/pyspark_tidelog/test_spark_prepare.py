"""The functions that are compiled ahead are those that tasks run."""

import pytest

pytest.importorskip("pyarrow")


from pyspark_tidelog import compiled, decode_kernel, encode_kernel
from pyspark_tidelog.prepare import prepare


@pytest.mark.skipif(not compiled.AVAILABLE, reason="numba is not installed")
def test_nothing_is_compiled_again_for_other_data() -> None:
    from test_spark_outgoing import arrow, decoded, new  # other codecs, nulls, slices, a partition column

    prepare()
    functions = [decode_kernel.walk, encode_kernel.encode, encode_kernel.assign_partitions]
    before = [len(function.signatures) for function in functions]  # type: ignore[attr-defined]
    rows = arrow([{"key": None, "value": b"a", "partition": 1}, {"key": b"b", "value": None, "partition": None}])
    decoded(new().batches(rows.slice(1)))
    decoded(new().batches(rows))
    assert [len(function.signatures) for function in functions] == before == [1, 1, 1]  # type: ignore[attr-defined]
