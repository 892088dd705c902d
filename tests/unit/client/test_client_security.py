"""TLS and SASL: with a broker that has a test certificate, and with the vectors of the standard."""

import re
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli_harness import answering
from tidelog.cli.connection import client_error
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.security import security_of
from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.cluster import Address
from tidelog.client.errors import ClientError, NoBrokerReachable
from tidelog.client.link import begin_tls
from tidelog.client.operations import Backoff
from tidelog.client.security import (
    AuthenticationFailed,
    Sasl,
    Security,
    TlsFiles,
    sasl_messages,
    tls_context,
    tls_failure,
)
from tidelog.wire.message import Message
from tidelog.wire.messages.list_groups import ListGroupsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
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
        ([b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "does not begin with this client's nonce"),
        ([b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ=="], "no valid salt, or no valid number"),
        ([b"r=rOprNGfwEbeRWgbNEkqOx,s=@,i=1"], "no valid salt, or no valid number"),
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


def protocol_of(text: str) -> list[str]:
    return re.findall(r"security\.protocol=(\w+)", text)


@pytest.mark.parametrize("sasl", [None, Sasl("PLAIN", "a", "b")])
def test_a_listener_without_tls_is_named_as_the_cause(sasl: Sasl | None) -> None:
    tls = tls_context(TlsFiles(), verify=False, check_host_name=True)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:

        def close_at_the_first_bytes() -> None:
            """End each connection as a broker does that reads the first bytes of TLS as a length."""
            with suppress(OSError):
                while True:
                    peer, _ = listening.accept()
                    with peer:
                        peer.recv(4096)

        served = threads.submit(close_at_the_first_bytes)
        address = "{}:{}".format(*listening.getsockname())
        client = Client(address, QUICK._replace(security=Security(tls, sasl)))
        with client, pytest.raises(NoBrokerReachable, match="if this listener has no TLS") as failed:
            client.ask_any(MetadataRequest(topics=[]), client.deadline())
        listening.shutdown(socket.SHUT_RDWR)
        served.result()
    assert protocol_of(str(failed.value)) == ["SASL_PLAINTEXT" if sasl else "PLAINTEXT"]
    assert "no TLS" in str(client_error(failed.value))
    assert "does a Kafka broker listen at the bootstrap address" not in str(client_error(failed.value))


@pytest.mark.parametrize("sasl", [None, Sasl("PLAIN", "a", "b")])
def test_a_listener_with_tls_is_named_as_the_cause(sasl: Sasl | None) -> None:
    with answering({"ListGroups": no_groups, "Metadata": metadata("x", 1)}, tls=server_tls()) as broker:
        client = Client(broker.bootstrap, QUICK._replace(security=Security(None, sasl)))
        with client, pytest.raises(ClientError, match=r"TLS|plaintext listener") as failed:
            client.ask_any(MetadataRequest(topics=[]), client.deadline())
    if isinstance(failed.value, NoBrokerReachable):
        assert protocol_of(str(failed.value)) == ["SASL_SSL" if sasl else "SSL"]


def test_a_listener_that_needs_a_login_is_named_as_the_cause() -> None:
    """It answers the greeting and closes the connection at the first request, as Kafka does."""

    def close(_: Message) -> None:
        with suppress(OSError):
            broker._sockets[-1].shutdown(socket.SHUT_RDWR)

    answers = {"SaslHandshake": lambda _: SaslHandshakeResponse(), "Metadata": close}
    for tls in (None, server_tls()):
        with answering(answers, tls=tls) as broker:
            context = tls and tls_context(TlsFiles(), verify=False, check_host_name=True)
            config = QUICK._replace(security=Security(context))
            with (
                Client(broker.bootstrap, config) as client,
                pytest.raises(NoBrokerReachable, match="needs a login") as failed,
            ):
                client.ask_any(MetadataRequest(topics=[]), client.deadline())
        assert protocol_of(str(failed.value)) == ["SASL_SSL" if tls else "SASL_PLAINTEXT"]


def test_a_connection_that_ends_later_has_nothing_to_do_with_security() -> None:
    with answering({"SaslHandshake": lambda _: SaslHandshakeResponse(), "Metadata": metadata("x", 1)}) as broker:
        broker.answers["Metadata"] = metadata(broker.host, broker.port)
        config = QUICK._replace(default_api_timeout_ms=2000)
        with Client(broker.bootstrap, config) as client:
            client.all_topics()  # the first response
            link = client._link(Address(broker.host, broker.port), client.deadline())
            assert link.remedy == ""


@pytest.mark.parametrize("offers_handshake", [False, True])
def test_credentials_for_a_listener_without_sasl(offers_handshake: bool) -> None:
    answers: dict[str, Callable[[Message], Message | None]] = {"Metadata": metadata("x", 1)}
    if offers_handshake:
        answers["SaslHandshake"] = lambda _: SaslHandshakeResponse(34, [])
    with answering(answers) as broker:
        client = Client(broker.bootstrap, QUICK._replace(security=Security(sasl=Sasl("PLAIN", "a", "b"))))
        with client, pytest.raises(AuthenticationFailed, match="this listener has no SASL") as failed:
            client.list_groups()
    assert protocol_of(str(failed.value)) == ["PLAINTEXT"]


@pytest.mark.parametrize(
    ("mechanism", "name", "password", "reason"),
    [
        ("PLAIN", "a\0b", "p", "sasl.username contains a NUL"),
        ("PLAIN", "a", "p\0", "sasl.password contains a NUL"),
        ("PLAIN", "", "p", "sasl.username is empty"),
        ("PLAIN", "a", "", "sasl.password is empty"),
        ("PLAIN", "\udcff", "p", "sasl.username is not UTF-8"),
        ("SCRAM-SHA-256", "a", "\udcff", "sasl.password is not UTF-8"),
        ("SCRAM-SHA-256", "a\0b", "p", "sasl.username contains a NUL"),
        ("SCRAM-SHA-512", "ü", "p", "other than ASCII, which Kafka's SCRAM-SHA-512 refuses"),
        ("SCRAM-SHA-512", "", "p", "sasl.username is empty"),
    ],
)
def test_credentials_that_no_broker_accepts_are_not_sent(mechanism: str, name: str, password: str, reason: str) -> None:
    sasl = Sasl(mechanism, name, password)
    with pytest.raises(AuthenticationFailed, match=reason) as failed:
        next(sasl_messages(sasl, NONCE))
    settings = {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}
    with pytest.raises(UsageError, match=f"-X .*{reason}"):
        security_of(settings | {"security.protocol": "sasl_plaintext"})
    assert "p\0" not in str(failed.value), "a password is never shown"


@pytest.mark.parametrize(
    ("name", "written"), [("a,b", "a=2Cb"), ("a=b", "a=3Db"), ("=2C", "=3D2C"), ("sp ace", "sp ace"), ("\x01", "\x01")]
)
def test_a_name_is_escaped_in_scram(name: str, written: str) -> None:
    """Kafka 4.3.1 accepts these names, with any password of UTF-8, also with a NUL, and prepares neither (SASLprep)."""
    assert next(sasl_messages(Sasl("SCRAM-SHA-256", name, "pä\0ⅸ"), NONCE)) == f"n,,n={written},r={NONCE}".encode()


def test_settings_without_effect_are_refused() -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    for settings, wanted in (
        (login, "SASL_PLAINTEXT"),
        (login | {"security.protocol": "SSL"}, "SASL_SSL"),
        ({"ssl.ca.location": CERTIFICATE}, "SSL"),
        (login | {"ssl.ca.location": CERTIFICATE, "security.protocol": "SASL_PLAINTEXT"}, "SASL_SSL"),
    ):
        with pytest.raises(UsageError, match=f"has no effect with .*: add -X security.protocol={wanted}$"):
            security_of(settings)
    assert security_of(login | {"security.protocol": "SASL_PLAINTEXT"}).sasl == Sasl("PLAIN", "a", "b")
    for name in ("ssl.key.location", "ssl.key.password"):
        with pytest.raises(UsageError, match=f"-X {name} has no effect without -X ssl.certificate.location=FILE"):
            security_of({"security.protocol": "SSL", name: KEY})


def test_an_error_names_the_settings_with_the_certificates() -> None:
    settings = {"security.protocol": "SSL", "ssl.ca.pem": "no certificate"}
    with pytest.raises(CommandError, match=r"the certificates for TLS cannot be used: .*; they are from ssl\.ca\.pem$"):
        security_of(settings)
    settings |= {"ssl.certificate.location": CERTIFICATE, "ssl.key.password": "hush"}
    message = (
        f"^the certificates or the private key for TLS .* from ssl.ca.pem, ssl.certificate.location={CERTIFICATE}$"
    )
    with pytest.raises(CommandError, match=message):
        security_of(settings)


def test_a_failed_handshake_names_the_setting_that_may_have_to_change() -> None:
    def failure(reason: str, verify_code: int = 0, verify_message: str = "") -> str:
        error = ssl.SSLCertVerificationError(1, reason)
        error.reason, error.verify_code, error.verify_message = reason, verify_code, verify_message
        return tls_failure("h", error)

    assert "set ssl.ca.location" in failure("CERTIFICATE_VERIFY_FAILED", 18, "self-signed certificate")
    assert "ssl.endpoint.identification.algorithm=none" in failure("CERTIFICATE_VERIFY_FAILED", 62, "Hostname mismatch")
    assert "ssl.certificate.location" in failure("TLSV13_ALERT_CERTIFICATE_REQUIRED")
    assert "security.protocol=PLAINTEXT" in failure("WRONG_VERSION_NUMBER")
    assert failure("OTHER") == "the TLS handshake with broker h failed: OTHER"


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        tls_context(TlsFiles(authorities_file=str(tmp_path / "no")), verify=True, check_host_name=True)
    (tmp_path / "empty").touch()
    with pytest.raises(ssl.SSLError):
        tls_context(TlsFiles(authorities_file=str(tmp_path / "empty")), verify=True, check_host_name=True)
    assert not tls_context(
        TlsFiles(certificate_file=CERTIFICATE, key_file=KEY), verify=False, check_host_name=True
    ).check_hostname
