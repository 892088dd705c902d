"""Rounds of faults against a cluster of real broker processes, with real clients: the program `script/rounds`."""
