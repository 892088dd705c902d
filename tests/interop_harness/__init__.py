"""Shared code of the client suites: the broker under test, records in a neutral form, foreign programs."""
