"""Base class of brokers and clusters that a process owns: the process cleans up when it ends, and its forks do not."""

import atexit
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.util import Finalize

AFTER_OWN_CHILDREN = -1
"""Priority of an exit function of multiprocessing. A function with a negative priority is called after the process
has joined its own children, which may be clients of the broker."""


class OwnedByProcess(ABC):
    """An object, such as a broker, that belongs to the process that started it. It has a directory, which may be
    temporary.
    """

    def __init__(self, data: str | Path | None) -> None:
        self.data = None if data is None else Path(data).absolute()
        """The directory with the data. None if no `data` was passed and no temporary directory exists now."""
        self._temporary = data is None
        self._owner_pid: int | None = None
        """The process that started the object; None while the object neither runs nor has a temporary directory."""
        self._child_finalizer: Finalize | None = None

    @property
    def _belongs_to_another_process(self) -> bool:
        """Whether this process is a fork of the process that started the object."""
        return self._owner_pid not in (None, os.getpid())

    @abstractmethod
    def _at_exit(self) -> None:
        """Clean up an object that was not stopped. This method is used instead of `stop`, because `stop` needs new
        threads, which a program that is ending cannot start.
        """

    def _clean_up_at_exit(self, finalizer: Callable[[], None]) -> None:
        """Register `_at_exit` for the end of this process. If this process is a child of multiprocessing, register
        `finalizer`, too: a forked child does not call `_at_exit`.
        """
        atexit.register(self._at_exit)
        if "multiprocessing" in sys.modules:
            from multiprocessing import parent_process, util

            # Forked children of multiprocessing do not run the functions of atexit. They run the finalizers of `util`.
            if parent_process() is not None:
                self._child_finalizer = util.Finalize(None, finalizer, exitpriority=AFTER_OWN_CHILDREN)

    def _remove_temporary(self) -> bool:
        """If the directory is temporary, delete it, and unregister the functions that clean up when the process ends.
        Return whether a directory was deleted.
        """
        if not self._temporary or self.data is None:
            return False
        atexit.unregister(self._at_exit)
        if self._child_finalizer is not None:
            self._child_finalizer.cancel()
            self._child_finalizer = None
        shutil.rmtree(self.data, ignore_errors=True)
        self.data = None
        return True
