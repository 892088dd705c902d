"""The partition's log on disk, in Kafka's own files: segments, indexes, producer state, epochs, recovery, retention."""
