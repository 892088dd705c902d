"""Replicas of partitions on this broker, as leader or follower: high watermarks, ISRs, waiting requests and syncs."""
