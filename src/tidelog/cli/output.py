"""Discard the output on stdout after a write to it has failed."""

import os
import sys


def drop_output() -> None:
    """Connect stdout to the null device, so that flushing its buffer at exit does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
