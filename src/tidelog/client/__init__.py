"""A wire client: metadata, offsets, groups, whole record batches in and out; TLS and SASL.

`connection`, `cluster` and `operations` are pure: requests out, frames in, decisions by value. `blocking` runs them on
ordinary sockets. `each`, `groups` and `partitions` answer for each of many things; `reader` reads on and on. Reading
guide: `operations`, then `blocking`.
"""
