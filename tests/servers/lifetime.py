"""Servers that start in time, and end with what has started them."""
import ctypes
import os
import signal
import subprocess
import sys
import time

# The seconds that all of a start may take.
START = 180


def leave(number, _frame):
    """Ends this process in order, so that it ends its child and removes its files."""
    sys.exit(f"{sys.argv[0]}: {signal.Signals(number).name}")


signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGALRM, leave)
signal.alarm(START)


def started(hello):
    """Says that the server is ready. From now on, this process ends with its input."""
    signal.alarm(0)
    print(hello, flush=True)


def spawn(command, folder, **options):
    """Starts a program in a folder, which is also its folder for temporary files. The kernel kills it as soon as this
    process ends."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare():
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        # A parent that has ended before sends no signal.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, cwd=folder, env={**os.environ, "TMPDIR": str(folder)}, preexec_fn=prepare,
        **options)


def is_ready(child, probe, errors):
    """Tries until a probe raises no more errors of these kinds. `False` if the child has ended."""
    while child.poll() is None:
        try:
            probe()
            return True
        except errors:
            time.sleep(0.05)
    return False


def end(child):
    """Ends a child, in order if it does not take long."""
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
