"""Settings: one table of what there is, how a text becomes a value, where a value comes from. Pure."""
