"""The command line: one module per noun, each imported when its command runs."""
