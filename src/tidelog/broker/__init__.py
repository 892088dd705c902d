"""The broker process: `broker` wires everything, `listener` accepts, `connection` turns frames into handlers' calls."""
