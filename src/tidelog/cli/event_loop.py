"""Choose the event loop of a broker process."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if uvloop is installed, otherwise asyncio's.

    The event loop policy is not changed.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
