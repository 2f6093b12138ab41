"""Become a container's command, having made sure to die with the sandbox.

Runs as ``python -I -S launch.py PARENT FD COMMAND…``: asks the kernel for SIGKILL when the sandbox dies,
checks that it has not died in between, and replaces itself with the command. When that cannot be, the
operating system's words go to FD, which a successful exec closes. A wrapper rather than a ``preexec_fn``,
which is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
# By Python, by nohup and by a shell that runs us in the background: children inherit that, containers do not.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def main(parent: int, report: int, command: list[str]) -> None:
    """Never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(0)
    os.set_inheritable(report, False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(report, f"exec: {command[0]!r}: {error.strerror}".encode())
        os._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
