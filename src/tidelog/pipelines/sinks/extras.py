"""Loads the optional packages of sinks and sources. If a package is missing, the error says how to install it."""

import importlib
from typing import Any

from tidelog.pipelines.declarations import PipelineError


def load(module: str, label: str, extra: str) -> Any:
    """Import `module` and return it. If its package is missing, raises PipelineError with the command that installs
    `extra`, an extra of Tidelog that contains the package.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise PipelineError(f"{label} needs the package {package}: run pip install 'tidelog[{extra}]'") from error
