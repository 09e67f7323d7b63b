"""Ports for servers that do not choose one themselves."""
import contextlib
import random
import socket
import sys

# An abstract socket for each port that a server of a test uses, or is about to. It ends with this process.
claims = []


def free_ports(count):
    """Ports that are free now, outside of those that the kernel gives to connections. No other test gets them."""
    found = []
    for port in random.sample(range(15000, 32000), 1000):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            claim.bind(f"\0weightfs-test-port-{port}")
            probe.bind(("127.0.0.1", port))
            claims.append(claim)
            found.append(port)
        if len(found) == count:
            return found
    sys.exit("too few ports are free")
