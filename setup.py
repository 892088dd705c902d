"""What pyproject.toml cannot say: a build begins in a directory of its own.

setuptools builds in build/ and leaves it there, and the next `pip install .` takes from it also what has been removed.
"""

import atexit
import shutil
import tempfile

from setuptools import setup

directory = tempfile.mkdtemp(prefix="tidelog-build-")
atexit.register(shutil.rmtree, directory, ignore_errors=True)
setup(options={"build": {"build_base": directory}})
