"""Choose the event loop of a broker process."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if it is installed, else of asyncio. The event loop policy is not changed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
