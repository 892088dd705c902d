"""Randomness of the operating system. Ids that are created from it cannot be predicted."""

import random


class SystemRandom(random.SystemRandom):
    """`random.SystemRandom` as an implementation of the protocol `Random`."""
