"""Compaction: choose logs that are worth a pass, rewrite their segments in a separate process, swap in new files."""
