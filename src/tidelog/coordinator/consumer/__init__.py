"""Groups of the consumer protocol (KIP-848): the broker computes the assignments, and members receive them in the
responses to their heartbeats.
"""
