"""Which event loop a broker runs on. For the command line and `testing` alone: nothing below them picks the loop."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's own. No policy is set: other loops of the process are left alone."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
