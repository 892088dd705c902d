"""Groups of the consumer protocol (KIP-848): the broker assigns, each member is led to its assignment by heartbeats."""
