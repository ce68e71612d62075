"""A program that is built on the stack (library mode), with a device of its own: where its connections leave."""

import os

from attacks import attack
from stage import PROGRAMS, SERVER, Broken, Proc


def reached(t, *routes):
    """Whom the world's server saw of a program on w0, after it was told of these ways and rules of the kernel's."""
    t.pair()
    t.ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
    for words in (("link", "set", "v0", "up"), ("link", "set", "v1", "up"), ("address", "add", "10.7.0.1/24", "dev", "v0"),
                  ("route", "add", "default", "via", "10.9.0.2")):
        t.ip(*words)
    t.ip("address", "add", "10.8.0.5/32", "dev", "lo", ns=t.world)
    for route in routes:
        t.ip(*route)
    server = t.py(SERVER, "0.0.0.0", 7601, "IN CLEAR", ns=t.world, preload=False)

    def connect(to):
        before = len(server.lines("peer"))
        command = ["ip", "netns", "exec", t.home, "timeout", "20", os.path.join(PROGRAMS, "fs-loadgen"), "--stack", "fastsock", "--device", "w0", "--cores", "0",
                   "--partial-checksums", "--connect", f"{to}:7601", "--mode", "pingpong", "--seconds", "0.5", "--timeout", "1"]
        said = Proc(t, command).end()
        return len(server.lines("peer")) > before, said
    # That it works at all.
    works, said = connect("10.9.0.2")
    if not works:
        raise RuntimeError(f"the program connects nowhere: {said[-300:]}")
    return connect("10.8.0.5")[0]


@attack("3: routes of a program on fs-rt")
def library_leaves_by_the_wrong_device(t):
    """10.8.0.0/24 is behind v0, a VPN. The program has w0, with the default route."""
    if reached(t, ("route", "add", "10.8.0.0/24", "dev", "v0")):
        raise Broken("a connection that the kernel sends by v0 leaves in clear by w0, to the gateway")


@attack("3: routes of a program on fs-rt")
def library_ignores_a_blackhole(t):
    if reached(t, ("route", "add", "blackhole", "10.8.0.0/24")):
        raise Broken("a connection to a network that the kernel has as a blackhole leaves by w0")


@attack("3: routes of a program on fs-rt")
def library_ignores_a_table(t):
    """A routing rule has its own table (policy routing): the kernel uses v0."""
    if reached(t, ("route", "add", "default", "dev", "v0", "table", "77"), ("rule", "add", "to", "10.8.0.0/24", "lookup", "77")):
        raise Broken("a connection that a rule of routing sends by v0 leaves by w0")


@attack("3: routes of a program on fs-rt")
def library_ignores_a_rule_of_its_user(t):
    if reached(t, ("rule", "add", "to", "10.8.0.0/24", "uidrange", "0-0", "prohibit")):
        raise Broken("a connection that a rule of routing prohibits to its user leaves by w0")
