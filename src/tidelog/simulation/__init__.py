"""A simulated cluster in one process: virtual time, a faulty network, and disks that lose unsynced bytes.

Begin with `world.World`. Equal seeds give equal runs, byte for byte.
"""
