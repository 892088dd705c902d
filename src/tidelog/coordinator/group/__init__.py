"""Consumer groups of the classic protocol. Pure: no I/O, no await, no clock, no randomness."""
