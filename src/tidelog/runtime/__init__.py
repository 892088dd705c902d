"""Time, randomness, disk, network and tasks: small protocols and their real implementations.

Product code reaches the outside only through a `Runtime`; `tidelog.simulation` has a second, deterministic one.
"""
