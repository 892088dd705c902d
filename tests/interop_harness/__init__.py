"""What the client suites share: the broker under test, records in a form of no client's, foreign programs."""
