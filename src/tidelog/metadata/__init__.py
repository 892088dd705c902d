"""The cluster's metadata: one journal of records in a store, and the immutable image that is built by replaying it."""
