"""A server of the S3 protocol: moto's, with exact conditional writes, a list of the requests, and faults.

Run as a program, it prints its port. Requests to `/-/...` control it. All other requests need the access key KEY; the
server does not check signatures. It answers one request at a time, so that a conditional write is exact, which moto's
own threads do not guarantee.
"""

import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import Client

KEY = "tidelog-test-key"
REGION = "us-east-1"
DENIED = (
    "<Error><Code>InvalidAccessKeyId</Code><Message>The AWS Access Key Id you provided does not exist in our records."
    "</Message><AWSAccessKeyId>{key}</AWSAccessKeyId></Error>"
)
AUTHORIZATION = f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/{REGION}/s3/aws4_request, SignedHeaders=host, Signature=0"


class ObjectServer:
    """The WSGI application."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._requests: list[dict[str, str]] = []
        self._faults: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            if environ["PATH_INFO"].startswith("/-/"):
                return self._control(environ, start_response)
            return self._serve(environ, start_response)

    def _control(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        command = environ["PATH_INFO"].removeprefix("/-/")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        answer: Any = None
        if command == "requests":
            answer, self._requests = self._requests, []
        elif command == "faults":
            self._faults = json.loads(body)
        else:
            bucket = command.removeprefix("buckets/")
            answer = Client(self._moto).put(f"/{bucket}", headers={"Authorization": AUTHORIZATION}).status_code
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = {
            "method": environ["REQUEST_METHOD"],
            "path": environ["PATH_INFO"],
            "query": environ.get("QUERY_STRING", ""),
            "if_none_match": environ.get("HTTP_IF_NONE_MATCH", ""),
            "copy_source": environ.get("HTTP_X_AMZ_COPY_SOURCE", ""),
        }
        self._requests.append(request)
        key = re.search(r"Credential=([^/]*)/", environ.get("HTTP_AUTHORIZATION", ""))
        if key is None or key[1] != KEY:
            return self._answer(environ, start_response, "403 Forbidden", DENIED.format(key=key[1] if key else ""))
        fault = self._fault(request)
        if fault == "unavailable":
            return self._answer(environ, start_response, "503 Slow Down", "<Error><Code>SlowDown</Code></Error>")
        if fault == "denied":
            return self._answer(environ, start_response, "403 Forbidden", "<Error><Code>AccessDenied</Code></Error>")
        if fault == "unconditional":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault == "lost answer":
            for _ in self._moto(environ, lambda *_: None):
                pass
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        return list(self._moto(environ, start_response))

    def _fault(self, request: dict[str, str]) -> str:
        """Return the fault that this request meets, or an empty text."""
        for fault in self._faults:
            if request["method"] == fault["method"] and re.search(fault["path"], request["path"]) and fault["times"]:
                fault["times"] -= 1
                return str(fault["kind"])
        return ""

    def _answer(
        self, environ: dict[str, Any], start_response: Callable[..., Any], status: str, text: str
    ) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(status, [("Content-Type", "application/xml")])
        return [text.encode()]


class Handler(MotoRequestHandler):
    def log_request(self, *_: Any) -> None:
        pass


def main() -> None:
    server = make_server("127.0.0.1", 0, ObjectServer(), threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()  # ends when the process that started this one ends


if __name__ == "__main__":
    main()
