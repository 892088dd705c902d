"""The broker: `broker` starts and stops all parts, `listener` accepts connections, `connection` handles requests."""
