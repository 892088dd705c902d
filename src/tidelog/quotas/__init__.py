"""Client quotas: the limits of each client, its recorded usage, and for how long it is throttled.

Pure: callers pass the time, in monotonic milliseconds.
"""
