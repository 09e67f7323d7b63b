"""Ports for servers that do not choose one themselves."""
import contextlib
import random
import socket
import sys


def free_ports(count):
    """Ports that are free now, outside of those that the kernel gives to connections."""
    found = []
    for port in random.sample(range(15000, 32000), 1000):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    sys.exit("too few ports are free")
