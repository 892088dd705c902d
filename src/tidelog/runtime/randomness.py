"""Randomness of the operating system: nobody can foretell the ids that are made from it."""

import random


class SystemRandom(random.SystemRandom):
    """`random.SystemRandom` under the shape of the runtime's `Random`."""
