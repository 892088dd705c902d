"""One module per API key, with the handler that turns a request into a response. `registry` finds the modules.
`services` contains the parts of the broker that handlers use."""
