"""Client quotas: which client has which quota, and by how much it exceeds it.

Pure: callers pass the time, in monotonic milliseconds.
"""
