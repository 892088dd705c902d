"""Groups of the consumer protocol (KIP-848): the broker computes assignments, and heartbeats move members to them."""
