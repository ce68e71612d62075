"""Connections to and from the world, which the daemon's cores make: 10.9.0.1 is the host's address, 10.9.0.2 the world's."""

import json
import time

from attacks import attack
from isolation import hold_locks
from kernel_rules import ECHO, TURNS, stops
from stage import CLIENT, SERVER, Broken, Late


def to_the_world(t, local, peer, asked="10.9.0.2:7501", user="nobody"):
    """A liar has a way to `asked`, and opens a connection that is said to go from `local` to `peer`; what it is told."""
    liar = t.liar(user=user).attach()
    fd = liar("socket", "v4")[0]
    route = liar("route", fd, asked)
    if route[0] != "wire":
        raise RuntimeError(f"not by the wire: {route}")
    memory = route[1].split(":")[1]
    channel = liar.may("open", liar("map", memory, "A")[0], local, peer, "wire")
    if not channel:
        return ""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        said = liar.may("recv", channel[0])
        if said:
            return " ".join(said)
        time.sleep(0.02)
    return ""


@attack("4: a forged destination in the slot")
def destination_that_a_rule_denies(t):
    t.start(config='[[rule]]\naction = "deny"\ncall = "connect"\nuser = "nobody"\nports = 7502\n', wire=True)
    t.py(SERVER, "10.9.0.2", 7502, "SECRET", ns=t.world, preload=False)
    t.py(SERVER, "10.9.0.2", 7501, "OPEN", ns=t.world, preload=False)
    if "SECRET" in to_the_world(t, "0.0.0.0:0", "10.9.0.2:7502"):
        raise Broken("nobody reaches a port that a rule forbids him, by a way that he has to another one")


@attack("4: a forged destination in the slot")
def destination_behind_another_device(t):
    """10.8.0.5 is behind another device (a VPN). The slot names it, and the core would send it unencrypted through its
    own device."""
    t.start(wire=True)
    t.ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
    t.ip("link", "set", "v0", "up")
    t.ip("link", "set", "v1", "up")
    t.ip("address", "add", "10.8.0.1/24", "dev", "v0")
    t.ip("route", "add", "default", "via", "10.9.0.2")
    t.ip("address", "add", "10.8.0.5/32", "dev", "lo", ns=t.world)
    t.py(SERVER, "10.8.0.5", 7503, "IN CLEAR", ns=t.world, preload=False)
    if "CLEAR" in to_the_world(t, "0.0.0.0:0", "10.8.0.5:7503"):
        raise Broken("a connection that the kernel sends by v0 leaves by w0")


@attack("4: a forged source in the slot")
def source_port_of_the_superuser(t):
    t.start(wire=True)
    server = t.py(SERVER, "10.9.0.2", 7504, "HELLO", ns=t.world, preload=False)
    to_the_world(t, "10.9.0.1:600", "10.9.0.2:7504")
    if any(line.endswith(" 600") for line in server.lines("peer")):
        raise Broken("nobody connects from port 600, which only root can bind")


@attack("4: a forged source in the slot")
def source_port_of_another_socket(t):
    """A socket of root's has bound the port: the attacker's segments would be taken for its own."""
    t.start(wire=True)
    server = t.py(SERVER, "10.9.0.2", 7505, "HELLO", "wait", ns=t.world, preload=False)
    t.py("import socket, time\ns = socket.socket(); s.bind(('10.9.0.1', 41000)); s.listen(); print('ready', flush=True); time.sleep(9)",
         preload=False)
    to_the_world(t, "10.9.0.1:41000", "10.9.0.2:7505")
    if any(line.endswith(" 41000") for line in server.lines("peer")):
        raise Broken("nobody connects from a port that root's socket has bound")


@attack("4: a forged source in the slot")
def source_address_of_another_host(t):
    t.start(wire=True)
    server = t.py(SERVER, "10.9.0.2", 7507, "HELLO", ns=t.world, preload=False)
    # The world finds that address at this host, as a switch that was led astray would.
    card = json.loads(t.ip("-j", "link", "show", "w0").stdout)[0]["address"]
    t.ip("neigh", "replace", "10.9.0.77", "lladdr", card, "dev", "w1", ns=t.world)
    if "HELLO" not in to_the_world(t, "0.0.0.0:0", "10.9.0.2:7507"):
        raise RuntimeError("the world is not reached at all")
    to_the_world(t, "10.9.0.77:0", "10.9.0.2:7507")
    if any("10.9.0.77" in line for line in server.lines("peer")):
        raise Broken("nobody connects from the address of another host")


@attack("a port on the wire")
def ipv6_only_listener_takes_ipv4(t):
    """The attacker listens on [::]:P with IPV6_V6ONLY. The service at 0.0.0.0:P is root's, on the kernel."""
    t.start(wire=True)
    t.py(SERVER, "0.0.0.0", 7508, "REAL", preload=False)
    script = SERVER.replace("s = socket.create_server((sys.argv[1], int(sys.argv[2])))",
                            "s = socket.create_server(('::', int(sys.argv[2])), family=socket.AF_INET6)")
    t.py(script, "", 7508, "EVIL", user="nobody")
    said = t.run(CLIENT.replace(", 3)", ", 1)"), "10.9.0.1", 7508, ns=t.world, preload=False)
    if "REAL" not in said:
        raise Broken(f"a listener of nobody's for IPv6 takes the wire's IPv4 connections from root's: {said}")


@attack("a port on the wire")
def ipv6_only_listener_takes_ipv4_of_the_past(t):
    """The attacker listened on [::]:P for both families and had an IPv4 client, and now listens there with
    IPV6_V6ONLY. The service at 0.0.0.0:P is root's, on the kernel."""
    t.start(wire=True)
    t.py("""
import socket
def server(**how): return socket.create_server(('::', 7519), family=socket.AF_INET6, **how)
s = server(dualstack_ipv6=True); print('ready', flush=True)
c, _ = s.accept(); c.sendall(b'EVIL'); c.recv(1); c.close(); s.close()
s = server(); print('again', flush=True)
while True: c, _ = s.accept(); c.sendall(b'EVIL'); c.close()
""", user="nobody")
    nobodys = t.procs[-1]
    script = CLIENT.replace(", 3)", ", 1)")
    if "EVIL" not in t.run(script, "10.9.0.1", 7519, ns=t.world, preload=False):
        raise RuntimeError("nobody's first listener is not reached")
    nobodys.wait_for("again")
    t.py(SERVER, "0.0.0.0", 7519, "REAL", preload=False)
    time.sleep(0.3)
    for _ in range(3):
        said = t.run(script, "10.9.0.1", 7519, ns=t.world, preload=False)
        if "REAL" not in said:
            raise Broken(f"a listener of nobody's for IPv6 takes the wire's IPv4 connections from root's: {said}")


@attack("a port on the wire")
def listener_of_one_address_takes_all(t):
    """The attacker listens at another address of the host. The service at the first one is root's, on the kernel."""
    t.start(wire=True)
    t.ip("address", "add", "10.9.0.3/24", "dev", "w0")
    t.py(SERVER, "10.9.0.1", 7509, "REAL", preload=False)
    t.py(SERVER, "10.9.0.3", 7509, "EVIL", user="nobody")
    time.sleep(0.3)
    said = t.run(CLIENT.replace(", 3)", ", 1)"), "10.9.0.1", 7509, ns=t.world, preload=False)
    if "REAL" not in said:
        raise Broken(f"a listener of nobody's at 10.9.0.3 takes the connections to root's at 10.9.0.1: {said}")


@attack("2: a released port")
def port_on_the_wire_is_closed_by_a_liar(t):
    t.start(wire=True)
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("bind", fd, "0.0.0.0:7510")
    liar("klisten", fd, 16)
    liar("listen", fd)
    time.sleep(0.3)
    liar("close", fd)
    if not t.rival(SERVER, "0.0.0.0", 7510, "REAL", preload=False):
        return
    said = t.run(CLIENT.replace(", 3)", ", 1)"), "10.9.0.1", 7510, ns=t.world, preload=False)
    if "REAL" not in said:
        raise Broken(f"the world is led to a listener that nobody has closed: {said}")


@attack("2: a released port")
def port_on_the_wire_is_left_at_once(t):
    """A port that the kernel chose is free when its socket is disconnected. It listens on another one before the
    daemon checks."""
    t.start(wire=True)
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("klisten", fd, 16)
    port = int(liar("name", fd)[0].rsplit(":", 1)[1])
    liar("listen", fd)
    time.sleep(0.3)
    liar("kmove", fd, 16)
    if int(liar("name", fd)[0].rsplit(":", 1)[1]) == port or not t.rival(SERVER, "0.0.0.0", port, "REAL", preload=False):
        raise RuntimeError("the port is not free")
    # A glance of the daemon's.
    time.sleep(0.6)
    said = t.run(CLIENT.replace(", 3)", ", 1)"), "10.9.0.1", port, ns=t.world, preload=False)
    if "REAL" not in said:
        raise Broken(f"the world is led to a listener that is at another port: {said}")


@attack("8: netfilter")
def input_rule_on_the_wire(t):
    t.start(wire=True)
    t.py(SERVER, "0.0.0.0", 7511, "REAL")
    t.sh("nft", "add table ip t; add chain ip t c { type filter hook input priority 0; }; "
         "add rule ip t c iifname w0 ip saddr 10.9.0.2 tcp dport 7511 drop")
    time.sleep(0.2)
    said = t.run(CLIENT.replace(", 3)", ", 1)"), "10.9.0.1", 7511, ns=t.world, preload=False)
    if "REAL" in said:
        raise Broken("a host that an input rule shuts out is served")


@attack("8: netfilter")
def rule_that_ends_an_open_connection_on_the_wire(t):
    t.start(wire=True)
    t.py(ECHO, "0.0.0.0", 7518)
    client = t.py(TURNS, "10.9.0.1", 7518, wait="turn 3", ns=t.world, preload=False)
    t.sh("nft", "add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c tcp dport 7518 drop")
    stops(client)


@attack("8: netfilter")
def output_rule_on_the_wire(t):
    t.start(wire=True)
    t.py(SERVER, "10.9.0.2", 7512, "REAL", ns=t.world, preload=False)
    t.sh("nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; "
         "add rule ip t c meta skuid nobody tcp dport 7512 reject with tcp reset")
    if "REAL" in t.run(CLIENT, "10.9.0.2", 7512, user="nobody"):
        raise Broken("nobody reaches the world where a rule forbids it")


@attack("7: SO_BINDTODEVICE")
def listener_of_another_device_on_the_wire(t):
    t.start(wire=True)
    t.ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
    t.ip("link", "set", "v0", "up")
    script = SERVER.replace("s = socket.create_server((sys.argv[1], int(sys.argv[2])))",
                            "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 25, b'v0'); s.bind(('', int(sys.argv[2]))); s.listen()")
    t.py(script, "", 7513, "BOUND")
    time.sleep(0.3)
    if "BOUND" in t.run(CLIENT.replace(", 3)", ", 1)"), "10.9.0.1", 7513, ns=t.world, preload=False):
        raise Broken("a listener that is bound to v0 is reached by w0")


@attack("7: routing rules")
def routing_rule_of_a_user_on_the_wire(t):
    t.start(wire=True)
    t.py(SERVER, "10.9.0.2", 7514, "REAL", ns=t.world, preload=False)
    t.ip("rule", "add", "pref", "50", "uidrange", "65534-65534", "prohibit")
    if "REAL" in t.run(CLIENT, "10.9.0.2", 7514, user="nobody"):
        raise Broken("nobody reaches the world where a rule of routing prohibits it")


@attack("a peer writes anything into shared memory")
def scribbles_over_a_core(t):
    """The attacker writes anything into the memory that it shares with a core. Connections of others continue."""
    t.start(wire=True)
    t.py(SERVER, "10.9.0.2", 7515, "REAL", ns=t.world, preload=False)
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    memory = liar("route", fd, "10.9.0.2:7515")[1].split(":")[1]
    side = liar("map", memory, "A")[0]
    for n in range(20):
        channel = liar.may("open", side, "0.0.0.0:0", "10.9.0.2:7515", "wire")
        if channel:
            liar.may("send", channel[0], "x" * 60)
        liar.may("scribble", memory, 99 + n, 3000)
    begun = time.monotonic()
    said = t.run(CLIENT, "10.9.0.2", 7515)
    if t.daemon.popen.poll() is not None:
        raise Broken(f"the daemon has ended: {t.daemon.said()[-200:]}")
    if "REAL" not in said or time.monotonic() - begun > 2:
        raise Late(f"a core does not serve others for {time.monotonic() - begun:.1f} s: {said!r} {t.daemon.said()[-200:]}")


@attack("a peer holds locks")
def lock_of_a_core_is_held(t):
    """A core that waited for a lock would serve nobody."""
    t.start(wire=True)
    t.py(SERVER, "10.9.0.2", 7516, "REAL", "wait", ns=t.world, preload=False)
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    cores = {}
    for _ in range(8):
        _, way, core = liar("route", fd, "10.9.0.2:7516")
        cores.setdefault(core, way.split(":"))
    for arena, memory in cores.values():
        channel, slot = liar("open", liar("map", memory, "A", "own")[0], "0.0.0.0:0", "10.9.0.2:7516", "wire")
        while not liar.may("recv", channel):
            pass
        hold_locks(liar, arena, memory, slot, "receive", "send")
        for _ in range(20):
            liar.may("send", channel, "y" * 60)
    t.py(SERVER, "10.9.0.2", 7517, "REAL", ns=t.world, preload=False)
    begun = time.monotonic()
    said = t.run(CLIENT, "10.9.0.2", 7517)
    if "REAL" not in said or time.monotonic() - begun > 1.5:
        raise Late(f"a core does not serve others for {time.monotonic() - begun:.1f} s, for one word of a client's: {said!r}")
