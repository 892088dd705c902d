"""Protection of a connection: TLS (KIP-12's SSL listeners), and SASL with PLAIN or SCRAM (RFC 5802).

Pure except `tls_context`, which reads certificate files. `link` sends and receives the bytes.
"""

import base64
import hashlib
import hmac
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.client.errors import ClientError

if TYPE_CHECKING:
    import ssl

SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *SCRAM_HASHES)
SCRAM_ITERATIONS_MAX = 1_000_000
"""Upper bound on the SCRAM iterations that a server may request. Each iteration costs computing time of this client."""


class AuthenticationFailed(ClientError):
    """One side rejected the certificate, credentials or mechanism of the other side.

    The client does not retry after this error, because another attempt would also fail (KIP-152).
    """


class Sasl(NamedTuple):
    mechanism: str
    """One of `MECHANISMS`."""
    username: str
    password: str

    def __repr__(self) -> str:
        """Return a text without the password, which must never reach a log."""
        return f"Sasl({self.mechanism}, {self.username!r})"


class Security(NamedTuple):
    """The protection of a connection. If no field is set, the protocol is PLAINTEXT."""

    tls: "ssl.SSLContext | None" = None
    sasl: Sasl | None = None


PLAINTEXT = Security()


def security_protocol(tls: bool, sasl: bool) -> str:
    """Return the value of Kafka's setting security.protocol."""
    return ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")


_NO_TLS_REASONS = (
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_MESSAGE",
)
"""Parts of OpenSSL's error texts. Each of them suggests that the peer does not use TLS."""
_HOST_NAME_MISMATCH, _ADDRESS_MISMATCH = 62, 64
"""OpenSSL's error codes for a certificate that belongs to another host."""


def tls_failure(host: str, error: OSError) -> str:
    """Return the text for a failed TLS handshake (an `ssl.SSLError`). If the error suggests that a setting has to
    change, the text names this setting.
    """
    openssl_reason = str(getattr(error, "reason", None) or error)
    text = f"the TLS handshake with broker {host} failed: {getattr(error, 'verify_message', '') or openssl_reason}"
    verify_code = getattr(error, "verify_code", 0)
    if verify_code in (_HOST_NAME_MISMATCH, _ADDRESS_MISMATCH):
        return (
            f"{text}; connect to the broker by a name that its certificate contains, or set "
            "ssl.endpoint.identification.algorithm=none"
        )
    if verify_code:
        return (
            f"{text}; if this system does not trust the authority that signed the broker's certificate, set "
            "ssl.ca.location to a certificate of this authority"
        )
    if "CERTIFICATE_REQUIRED" in openssl_reason:
        return f"{text}; the broker asks for a certificate: set ssl.certificate.location and ssl.key.location"
    if any(reason in openssl_reason for reason in _NO_TLS_REASONS):
        return f"{text}; if this listener has no TLS, set security.protocol=PLAINTEXT or SASL_PLAINTEXT"
    return text


class TlsFiles(NamedTuple):
    """The certificates and keys for a TLS context; each field may be None."""

    authorities_file: str | None = None
    """A PEM file with CA certificates, or a directory that contains such PEM files."""
    authorities_pem: str | None = None
    """CA certificates as PEM text. If this and `authorities_file` are None, the system's CA certificates are used."""
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None


def tls_context(files: TlsFiles, *, verify: bool, check_host_name: bool) -> "ssl.SSLContext":
    """Return a TLS context. Raises OSError (for example `ssl.SSLError`) for files that cannot be read or are not
    certificates.
    """
    import ssl

    context = ssl.create_default_context()
    if files.authorities_file is not None or files.authorities_pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if files.authorities_pem is not None:
            context.load_verify_locations(cadata=files.authorities_pem)
        if files.authorities_file is not None:
            try:
                context.load_verify_locations(cafile=files.authorities_file)
            except IsADirectoryError:
                context.load_verify_locations(capath=files.authorities_file)
    if files.certificate_file is not None:
        context.load_cert_chain(files.certificate_file, files.key_file, files.key_password)
    context.check_hostname = verify and check_host_name
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    return context


def credentials_refusal(sasl: Sasl) -> str | None:
    """Return the reason why no Kafka broker can accept these credentials; None if a broker may accept them.

    PLAIN separates its fields by NUL (RFC 4616). Kafka's SCRAM accepts only ASCII without NUL in a user name. Kafka
    does not prepare names and passwords by SASLprep: both sides use the UTF-8 bytes unchanged.
    """
    if not sasl.username:
        return "sasl.username is empty: a broker refuses an empty name"
    if not sasl.password:
        return "sasl.password is empty: a broker refuses an empty password"
    for setting, text in (("sasl.username", sasl.username), ("sasl.password", sasl.password)):
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{setting} is not UTF-8"
        if "\0" in text and (sasl.mechanism == "PLAIN" or setting == "sasl.username"):
            return f"{setting} contains a NUL, which {sasl.mechanism} cannot transfer"
    if sasl.mechanism != "PLAIN" and not sasl.username.isascii():
        return (
            f"sasl.username {sasl.username!r} has characters other than ASCII, which Kafka's {sasl.mechanism} refuses: "
            "use a name in ASCII, or sasl.mechanism=PLAIN"
        )
    return None


def sasl_messages(sasl: Sasl, nonce: str) -> Generator[bytes, bytes, None]:
    """Yield the client's SASL messages. After each message, the caller passes the broker's response to `send` of the
    generator.

    `nonce` is fresh randomness in printable ASCII without a comma. Raises AuthenticationFailed.
    """
    if refusal := credentials_refusal(sasl):
        raise AuthenticationFailed(refusal)
    if sasl.mechanism == "PLAIN":
        yield f"\0{sasl.username}\0{sasl.password}".encode()
    else:
        yield from _scram(sasl, SCRAM_HASHES[sasl.mechanism], nonce)


def _scram(sasl: Sasl, hash_name: str, nonce: str) -> Generator[bytes, bytes, None]:
    name = sasl.username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    server_first = (yield f"n,,{first}".encode()).decode("utf-8", "replace")
    fields = _fields(server_first)
    if not fields.get("r", "").startswith(nonce):
        raise AuthenticationFailed("the nonce in the broker's SCRAM answer does not begin with this client's nonce")
    try:
        iterations = int(fields["i"])
        salt = base64.b64decode(fields["s"], validate=True)
    except (KeyError, ValueError):
        reason = "the broker's SCRAM answer has no valid salt, or no valid number of iterations"
        raise AuthenticationFailed(reason) from None
    if not 0 < iterations <= SCRAM_ITERATIONS_MAX:
        raise AuthenticationFailed(f"the broker requests {iterations} SCRAM iterations, which is out of range")
    salted_password = hashlib.pbkdf2_hmac(hash_name, sasl.password.encode(), salt, iterations)
    client_key = hmac.digest(salted_password, b"Client Key", hash_name)
    without_proof = f"c=biws,r={fields['r']}"
    signed = f"{first},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    server_key = hmac.digest(salted_password, b"Server Key", hash_name)
    expected_signature = base64.b64encode(hmac.digest(server_key, signed, hash_name)).decode()
    server_signature = _fields(answer.decode("utf-8", "replace")).get("v", "")
    if not hmac.compare_digest(server_signature.encode(), expected_signature.encode()):
        raise AuthenticationFailed("the broker does not prove that it knows the password")


def _fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
