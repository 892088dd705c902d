"""Rounds of kills: a streaming query on a small Spark cluster, whose processes are killed at random times."""
