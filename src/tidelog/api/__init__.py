"""One module per API key, with the handler that turns a request into a response. `registry` finds the modules.
`services` contains the parts of the broker that handlers use.

A handler returns an `Outcome` (see `pending`). For example, a handler works in steps and then returns a coroutine. The
coroutine waits for the controller, and returns the steps that build the response.
"""
