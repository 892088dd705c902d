"""Time, randomness, disk, network and tasks: small protocols and their real versions.

Product code reaches the outside only through a `Runtime`; `tidelog.simulation` has a second, deterministic one.
"""
