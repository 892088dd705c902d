"""Format the network addresses of brokers as text."""


def host_port_text(host: str, port: object) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
