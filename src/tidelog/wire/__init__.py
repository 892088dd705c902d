"""The Kafka protocol as bytes: frames, messages, record batches, errors. No I/O."""
