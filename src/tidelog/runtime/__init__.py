"""Time, randomness, disk, network and tasks: small protocols and their real implementations.

Product code uses the operating system only through a `Runtime`. `tidelog.simulation` has a second, deterministic
implementation.
"""
