"""Reads files through maps, each in its own process, because an error in a map is a signal that ends the process.

Standard input begins with a line `PATH TAB EXPECTED TAB LENGTH` for each file, and an empty line. The first LENGTH bytes of
PATH are compared with those of EXPECTED. When every reader has compared some bytes, `reading` is printed. After each further
line of input, `done` is printed when every running reader has begun and completed a round. At the end of the input, the
readers stop, and a line for each file tells how its reader ended: `right`, `wrong`, `failed` or the number of the signal.
"""
import mmap
import os
import resource
import struct
import sys
import time
import traceback

STEP = 64 << 10


def read(path, expected, length, rounds, slot, stop):
    """Compares until `stop` is set or the parent process has ended."""
    parent = os.getppid()
    file = os.open(path, os.O_RDONLY)
    view = mmap.mmap(file, length, mmap.MAP_SHARED, mmap.PROT_READ)
    count = 0
    while not stop[0] and os.getppid() == parent:
        for at in range(0, length, STEP):
            if view[at : at + STEP] != expected[at : min(at + STEP, length)]:
                return 1
            # The count is odd within a round and even between rounds.
            struct.pack_into("<Q", rounds, slot * 8, count * 2 + 1)
        count += 1
        struct.pack_into("<Q", rounds, slot * 8, count * 2)
        # Drops the pages, so that the next round faults every page again.
        view.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return 0


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = []
    while line := sys.stdin.readline().rstrip("\n"):
        path, expected, length = line.split("\t")
        with open(expected, "rb") as file:
            files.append((path, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ), int(length)))
    rounds = mmap.mmap(-1, 8 * len(files))
    stop = mmap.mmap(-1, 1)
    pids = []
    for slot, (path, expected, length) in enumerate(files):
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                code = read(path, expected, length, rounds, slot, stop)
            except BaseException:
                traceback.print_exc()
            # Skips the parent's cleanup in the child.
            os._exit(code)
        pids.append(pid)
    ended = {}

    def wait(slot, enough):
        while pids[slot] not in ended and not enough(struct.unpack_from("<Q", rounds, slot * 8)[0]):
            pid, status = os.waitpid(pids[slot], os.WNOHANG)
            if pid:
                ended[pid] = status
            else:
                time.sleep(0.001)

    for slot in range(len(files)):
        wait(slot, lambda now: now > 0)
    print("reading", flush=True)
    while sys.stdin.readline():
        # The current round does not count, because it may have begun before this line.
        seen = struct.unpack(f"<{len(files)}Q", rounds)
        for slot, before in enumerate(seen):
            wait(slot, lambda now: now >= (before | 1) + 3)
        print("done", flush=True)
    stop[0] = 1
    for pid in pids:
        status = ended.get(pid)
        if status is None:
            status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            print(os.WTERMSIG(status))
        else:
            print({0: "right", 1: "wrong"}.get(os.WEXITSTATUS(status), "failed"))


main()
