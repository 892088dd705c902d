"""Configure TLS and SASL of Tidelog's own client from librdkafka's settings (-X)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from tidelog.client.security import Sasl, Security

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
CERTIFICATE, KEY, KEY_PASSWORD = "ssl.certificate.location", "ssl.key.location", "ssl.key.password"
FILES = {
    "ssl.ca.location": "authorities_file",
    "ssl.ca.pem": "authorities_pem",
    CERTIFICATE: "certificate_file",
    KEY: "key_file",
    KEY_PASSWORD: "key_password",
}
"""Setting of librdkafka -> field of `tidelog.client.security.TlsFiles`."""
OF_CERTIFICATE = (KEY, KEY_PASSWORD)
"""Settings that have an effect only together with CERTIFICATE."""
VERIFY, HOST_NAME = "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"
SASL = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")


def security_of(settings: Mapping[str, str]) -> "Security":
    """Return the TLS context and the SASL credentials for connections.

    Raises UsageError for an unsupported setting or value, and CommandError for unusable files.
    """
    from tidelog.client.security import Security, security_protocol

    protocol = settings.get("security.protocol", "plaintext").lower()
    if protocol not in PROTOCOLS:
        raise UsageError(f"-X security.protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    has_tls, has_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
    for name in settings:
        if name.startswith(("ssl.", "sasl.")) and name not in (*FILES, HOST_NAME, *SASL):
            raise UsageError(
                f"-X {name} is not supported; supported settings: {', '.join((*FILES, HOST_NAME, VERIFY, *SASL))}"
            )
        if name.startswith("ssl.") and not has_tls:
            _refuse_without_effect(name, protocol, security_protocol(True, has_sasl))
        if name.startswith("sasl.") and not has_sasl:
            _refuse_without_effect(name, protocol, security_protocol(has_tls, True))
    if CERTIFICATE not in settings and (without_certificate := [name for name in OF_CERTIFICATE if name in settings]):
        raise UsageError(f"-X {without_certificate[0]} has no effect without -X {CERTIFICATE}=FILE")
    tls = None
    if has_tls:
        from tidelog.client.security import TlsFiles, tls_context

        files = TlsFiles(**{field: settings[name] for name, field in FILES.items() if name in settings})
        verify = settings.get(VERIFY, "true").lower() != "false"
        check_host_name = settings.get(HOST_NAME, "https").lower() != "none"
        try:
            tls = tls_context(files, verify=verify, check_host_name=check_host_name)
        except (OSError, ValueError) as error:
            # A certificate of ssl.ca.pem has many lines, so only the name of this setting is shown.
            given = [
                f"{name}={settings[name]}" if name.endswith(".location") else name
                for name in FILES
                if name in settings and name != KEY_PASSWORD
            ]
            subject = "the certificates or the private key" if CERTIFICATE in settings else "the certificates"
            raise CommandError(
                f"{subject} for TLS cannot be used: {error}; they are from {', '.join(given) or 'the operating system'}"
            ) from error
    return Security(tls, _sasl(settings) if has_sasl else None)


def _refuse_without_effect(name: str, protocol: str, wanted: str) -> None:
    raise UsageError(
        f"-X {name} has no effect with security.protocol={protocol.upper()}: add -X security.protocol={wanted}"
    )


def _sasl(settings: Mapping[str, str]) -> "Sasl":
    from tidelog.client.security import MECHANISMS, Sasl, credentials_refusal

    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
    if mechanism not in MECHANISMS:
        raise UsageError(f"-X sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    missing = [name for name in ("sasl.username", "sasl.password") if name not in settings]
    if missing:
        raise UsageError(f"-X {missing[0]}=... is missing: {mechanism} needs it")
    sasl = Sasl(mechanism, settings["sasl.username"], settings["sasl.password"])
    if refusal := credentials_refusal(sasl):
        raise UsageError(f"-X {refusal}")
    return sasl
