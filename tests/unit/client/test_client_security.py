"""TLS and SASL: with a broker that has a test certificate, and with the vectors of the standard."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_harness import answering
from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.link import begin_tls
from tidelog.client.operations import Backoff
from tidelog.client.security import (
    AuthenticationFailed,
    Sasl,
    Security,
    TlsFiles,
    sasl_messages,
    tls_context,
)
from tidelog.wire.message import Message
from tidelog.wire.messages.list_groups import ListGroupsResponse
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeResponse

FILES = Path(__file__).parent / "tls"
CERTIFICATE, KEY = str(FILES / "certificate.pem"), str(FILES / "key.pem")
QUICK = ClientConfig(default_api_timeout_ms=30_000, request_timeout_ms=30_000, backoff=Backoff(10, 10))

# RFC 7677, section 3.
RFC_7677 = Sasl("SCRAM-SHA-256", "user", "pencil")
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


def metadata(*address: Any) -> Callable[[Message], Message]:
    return lambda _: MetadataResponse(brokers=[MetadataResponseBroker(1, *address)])


def no_groups(_: Message) -> Message:
    return ListGroupsResponse()


def test_scram_as_the_standard_has_it() -> None:
    messages = sasl_messages(RFC_7677, NONCE)
    assert next(messages) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert messages.send(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        messages.send(SERVER_FINAL)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "does not continue our nonce"),
        ([b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ=="], "no salt or no number"),
        ([b"r=rOprNGfwEbeRWgbNEkqOx,s=@,i=1"], "no salt or no number"),
        ([b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1000000000"], "requests 1000000000"),
        ([SERVER_FIRST, b"v=AAAA"], "does not prove"),
        ([SERVER_FIRST, b"\xff"], "does not prove"),
    ],
)
def test_a_broker_that_does_not_know_the_password(answers: list[bytes], reason: str) -> None:
    messages = sasl_messages(RFC_7677, NONCE)
    next(messages)
    with pytest.raises(AuthenticationFailed, match=reason):
        for answer in answers:
            messages.send(answer)


def test_a_password_is_not_shown() -> None:
    assert "pencil" not in f"{Security(sasl=RFC_7677)!r} {RFC_7677}"


def test_plain_over_tls() -> None:
    said = []

    def authenticate(request: Any) -> Message:
        said.append(request.auth_bytes)
        return SaslAuthenticateResponse()

    answers = {
        "SaslHandshake": lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]),
        "SaslAuthenticate": authenticate,
        "ListGroups": no_groups,
        "Metadata": lambda _: MetadataResponse(brokers=[MetadataResponseBroker(1, broker.host, broker.port)]),
    }
    with answering(answers, tls=server_tls()) as broker:
        tls = tls_context(TlsFiles(authorities_file=CERTIFICATE), verify=True, check_host_name=True)
        security = Security(tls, Sasl("PLAIN", "name", "pässword"))
        with Client(broker.bootstrap, QUICK._replace(security=security)) as client:
            assert client.list_groups().groups == []
    assert said[0] == "\0name\0pässword".encode()


def test_a_certificate_that_nobody_vouches_for() -> None:
    with answering({"ListGroups": no_groups, "Metadata": metadata("x", 1)}, tls=server_tls()) as broker:
        tls = tls_context(TlsFiles(), verify=True, check_host_name=True)
        client = Client(broker.bootstrap, QUICK._replace(security=Security(tls)))
        with client, pytest.raises(AuthenticationFailed, match="self-signed certificate"):
            client.list_groups()


def test_a_broker_without_tls() -> None:
    tls = tls_context(TlsFiles(), verify=True, check_host_name=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        plain = socket.create_connection(listening.getsockname())
        broker, _ = listening.accept()
        with plain, broker:
            broker.sendall(b"no handshake")
            with pytest.raises(
                AuthenticationFailed, match=r"the TLS handshake with broker localhost failed: .*VERSION_NUMBER"
            ):
                begin_tls(plain, tls, "localhost")


@pytest.mark.parametrize(
    ("handshake", "authenticated", "reason"),
    [
        (SaslHandshakeResponse(33, ["GSSAPI"]), SaslAuthenticateResponse(), "does not offer PLAIN, it offers GSSAPI"),
        (SaslHandshakeResponse(), SaslAuthenticateResponse(58, "wrong \udcff"), "rejects the authentication: wrong"),
        (SaslHandshakeResponse(), SaslAuthenticateResponse(58), "SASL_AUTHENTICATION_FAILED"),
    ],
)
def test_what_the_broker_refuses(handshake: Message, authenticated: Message, reason: str) -> None:
    answers = {
        "SaslHandshake": lambda _: handshake,
        "SaslAuthenticate": lambda _: authenticated,
        "Metadata": metadata("x", 1),
    }
    with answering(answers) as broker:
        security = Security(sasl=Sasl("PLAIN", "a", "b"))
        client = Client(broker.bootstrap, QUICK._replace(security=security))
        with client, pytest.raises(AuthenticationFailed, match=reason):
            client.list_groups()


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        tls_context(TlsFiles(authorities_file=str(tmp_path / "no")), verify=True, check_host_name=True)
    (tmp_path / "empty").touch()
    with pytest.raises(ssl.SSLError):
        tls_context(TlsFiles(authorities_file=str(tmp_path / "empty")), verify=True, check_host_name=True)
    assert not tls_context(
        TlsFiles(certificate_file=CERTIFICATE, key_file=KEY), verify=False, check_host_name=True
    ).check_hostname
