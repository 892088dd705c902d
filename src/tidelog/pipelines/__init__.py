"""Data pipelines on Spark: plain PySpark functions with declared sources and sinks."""
