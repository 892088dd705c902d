"""A small wire client: metadata, offsets, whole record batches in and out.

`connection`, `cluster` and `operations` are pure: requests out, frames in, decisions by value. `blocking` runs them on
ordinary sockets. Reading guide: `operations`, then `blocking`.
"""
