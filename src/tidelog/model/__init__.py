"""Identifiers and exceptions that every layer shares; pure."""
