"""Compaction: which log is worth a pass, the rewriting of its segments beside the broker, their swap by file names."""
