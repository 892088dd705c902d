"""Partitions as this broker leads them: high watermark, who waits for it, durability of what is acknowledged."""
