"""Coordinators: pure cores that decide, and the runtime that appends their records, replays them and sends their
replies.
"""
