"""One module per API key: a request in, a response out. `registry` finds them, `services` is what they may use."""
