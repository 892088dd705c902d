"""Makes the packages beside it importable from every test."""
