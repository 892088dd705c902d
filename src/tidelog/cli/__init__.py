"""The command line: one module per command group, imported only when one of its commands runs."""
