"""Tasks and drivers of the exactly-once sink without Spark, which die at a chosen request."""
