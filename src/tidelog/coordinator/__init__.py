"""Coordinators: pure cores that decide, and the runtime that appends, replays and replies for them."""
