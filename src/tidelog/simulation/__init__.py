"""The world of a whole cluster in one process: virtual time, a faulty network and disks that lose unsynced bytes.

Begin with `world.World`. The same seed gives the same run, byte for byte.
"""
