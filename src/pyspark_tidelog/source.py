"""The class behind `format("tidelog")`. It has the interface that Spark expects, and creates readers and writers."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_tidelog.filters import spark_pushes_filters
from pyspark_tidelog.options import read_options, write_options
from pyspark_tidelog.schema import columns_of, source_schema
from pyspark_tidelog.settings import Options


class TidelogDataSource(DataSource):
    """The data source. Spark creates one for each query, in a separate process, and pickles it.

    Its errors are in `pyspark_tidelog.errors`.
    """

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return source_schema(Options(self.options).flag("includeHeaders", False))

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_tidelog.batch_reader import FilteringReader, TidelogReader

        options = read_options(self.options, streaming=False)
        kind = FilteringReader if options.push_filters and spark_pushes_filters() else TidelogReader
        return kind(options, columns_of(schema, options.include_headers))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_tidelog.stream_reader import TidelogStreamReader

        options = read_options(self.options, streaming=True)
        return TidelogStreamReader(options, columns_of(schema, options.include_headers))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from pyspark_tidelog.writer import TidelogWriter

        return TidelogWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_tidelog.writer import TidelogStreamWriter

        return TidelogStreamWriter(write_options(self.options), schema, overwrite)
