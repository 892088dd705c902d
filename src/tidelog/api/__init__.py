"""One module per API key: a handler turns a request into a response. `registry` finds the modules; `services` has the
broker's parts that handlers use."""
