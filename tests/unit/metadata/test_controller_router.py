"""The answers of a remote controller, if this broker is slow to process the metadata on which they are based."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.metadata.link import Answer, ControllerRouter
from tidelog.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (Answer("value", position=5), ErrorCode.REQUEST_TIMED_OUT, "the requested changes may already have been made"),
        (Answer(None, ErrorCode.INVALID_CONFIG, "no", position=5), ErrorCode.INVALID_CONFIG, "no"),
    ],
)
def test_at_the_deadline_the_answer_claims_no_change_that_it_does_not_know(
    answer: Answer[Any], error: ErrorCode, text: str
) -> None:
    async def scenario() -> None:
        runtime: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: 0.0),
            tasks=SimpleNamespace(spawn=lambda work, name: asyncio.ensure_future(work)),
        )
        publisher: Any = SimpleNamespace(wait_for=lambda _position: asyncio.sleep(3600))
        cache: Any = SimpleNamespace(processed=SimpleNamespace(position=4))
        local: Any = None
        router = ControllerRouter(1, local, None, publisher, cache, runtime)
        request: Any = None  # no request of a broker
        late = await router._when_followed(request, answer, 0.0)
        assert (late.value, late.error) == (None, error)
        assert text in late.message

    asyncio.run(scenario())
