"""Reads files through maps, each in a process of its own, because the error of a map is the signal that ends its reader.

Standard input begins with a line `PATH TAB EXPECTED TAB LENGTH` for each file, of which the first LENGTH bytes are compared
with those of EXPECTED, and an empty line. When every reader has compared some bytes, `reading` is printed. For each line
that comes then, `done` is printed when every reader that lives has begun and ended a whole round since. At the end of the
input the readers stop, and a line for each file says how its reader ended: `right`, `wrong`, or the number of the signal.
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
    """Compares until told to stop, or until nobody is there to tell."""
    parent = os.getppid()
    file = os.open(path, os.O_RDONLY)
    view = mmap.mmap(file, length, mmap.MAP_SHARED, mmap.PROT_READ)
    count = 0
    while not stop[0] and os.getppid() == parent:
        for at in range(0, length, STEP):
            if view[at : at + STEP] != expected[at : min(at + STEP, length)]:
                return 1
            # Odd within a round, even between two.
            struct.pack_into("<Q", rounds, slot * 8, count * 2 + 1)
        count += 1
        struct.pack_into("<Q", rounds, slot * 8, count * 2)
        # So that the next round asks for every page again.
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
            # Nothing of the parent's runs on in the child.
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
        # The round that is under way may have begun before.
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
