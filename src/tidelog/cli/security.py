"""Configure TLS and SASL of Tidelog's own client from librdkafka's settings (-X)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from tidelog.client.security import Sasl, Security

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
FILES = {
    "ssl.ca.location": "authorities_file",
    "ssl.ca.pem": "authorities_pem",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
}
"""librdkafka's setting -> the field of `tidelog.client.security.TlsFiles`."""
VERIFY, HOST_NAME = "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"
SASL = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")


def security_of(settings: Mapping[str, str]) -> "Security":
    """Return the TLS context and the SASL credentials for connections.

    Raises UsageError for an unsupported setting or value, and CommandError for unusable files.
    """
    from tidelog.client.security import Security

    protocol = settings.get("security.protocol", "plaintext").lower()
    if protocol not in PROTOCOLS:
        raise UsageError(f"-X security.protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    for name in settings:
        if name.startswith(("ssl.", "sasl.")) and name not in (*FILES, HOST_NAME, *SASL):
            raise UsageError(
                f"-X {name} is not supported; supported settings: {', '.join((*FILES, HOST_NAME, VERIFY, *SASL))}"
            )
    tls = None
    if protocol.endswith("ssl"):
        from tidelog.client.security import TlsFiles, tls_context

        files = TlsFiles(**{field: settings[name] for name, field in FILES.items() if name in settings})
        verify = settings.get(VERIFY, "true").lower() != "false"
        host_name = settings.get(HOST_NAME, "https").lower() != "none"
        try:
            tls = tls_context(files, verify=verify, check_host_name=host_name)
        except (OSError, ValueError) as error:
            given = ", ".join(
                f"{name}={settings[name]}" for name in FILES if name.endswith(".location") and name in settings
            )
            raise CommandError(
                f"the certificate files for TLS cannot be used: {error}; the files are"
                f" {given or 'those of the operating system'}"
            ) from error
    return Security(tls, _sasl(settings) if protocol.startswith("sasl") else None)


def _sasl(settings: Mapping[str, str]) -> "Sasl":
    from tidelog.client.security import MECHANISMS, Sasl

    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
    if mechanism not in MECHANISMS:
        raise UsageError(f"-X sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    missing = [name for name in ("sasl.username", "sasl.password") if name not in settings]
    if missing:
        raise UsageError(f"-X {missing[0]}=... is missing: {mechanism} needs it")
    return Sasl(mechanism, settings["sasl.username"], settings["sasl.password"])
