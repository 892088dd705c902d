"""Randomness of the operating system, so that the ids made from it cannot be predicted."""

import random


class SystemRandom(random.SystemRandom):
    """`random.SystemRandom` as an implementation of the protocol `Random`."""
