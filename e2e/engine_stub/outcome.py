"""How the process ends: with an exit code, or by the signal that a code above 128 stands for."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


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
