"""Settings: one table of all settings, the parsing of values, and the sources of values. Pure."""
