"""How the process ends: an exit code, or the signal that a code above 128 stands for."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


class EngineExit(Exception):
    """Ends the engine with ``code``; what had to be said was already logged."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


def leave(code: int) -> NoReturn:
    """End this process now, without clean-up; 137, 134, … by really dying of that signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code > 128:
        number = signal.Signals(code - 128)
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # as PID 1 of a container the kernel may drop it: fall through
    os._exit(code)
