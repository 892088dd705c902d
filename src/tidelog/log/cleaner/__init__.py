"""Compaction: choose logs that are worth a pass, rewrite segments in a separate process, replace the old files."""
