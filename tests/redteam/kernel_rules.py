"""What the kernel of this host would have said: rules, routes, hooks and options that a connection by memory must not pass by."""

import os
import time

from attacks import attack
from stage import CLIENT, PYTHON, SERVER, Broken, Inapplicable, Late, Proc


def same(t, client, *arguments, **how):
    """The program with the library is told what it is told without."""
    kernel = t.run(client, *arguments, preload=False, **how)
    ours = t.run(client, *arguments, **how)
    if kernel.split()[:1] != ours.split()[:1]:
        raise Broken(f"the kernel's answer is {kernel!r}, ours {ours!r}")
    return kernel


def served(t, port, text="REAL", script=SERVER, **how):
    t.start()
    return t.py(script, "127.0.0.1", port, text, **how)


@attack("8: netfilter")
def output_rule_of_a_user(t):
    """nft output, meta skuid: the user nobody may not connect there."""
    served(t, 7401)
    t.sh("nft", "add table inet t; add chain inet t c { type filter hook output priority 0; }; "
         "add rule inet t c meta skuid nobody tcp dport 7401 reject with tcp reset")
    same(t, CLIENT, "127.0.0.1", 7401, user="nobody")


@attack("8: netfilter")
def input_rule_through_a_jump(t):
    served(t, 7402)
    t.sh("nft", "add table ip t; add chain ip t deep; add set ip t ports { type inet_service; elements = { 7402 }; }; "
         "add rule ip t deep tcp dport @ports reject with tcp reset; "
         "add chain ip t c { type filter hook input priority 0; }; add rule ip t c iifname lo jump deep")
    same(t, CLIENT, "127.0.0.1", 7402)


@attack("8: netfilter")
def rule_of_iptables_legacy(t):
    served(t, 7403)
    if t.sh("iptables-legacy", "-A", "OUTPUT", "-p", "tcp", "--dport", "7403", "-j", "REJECT", "--reject-with", "tcp-reset",
            check=False).returncode != 0:
        raise Inapplicable("no iptables-legacy in this kernel")
    same(t, CLIENT, "127.0.0.1", 7403)


@attack("8: netfilter")
def address_translation(t):
    """A redirect in output: the kernel leads the client to another server."""
    served(t, 7404, "DIRECT")
    t.py(SERVER, "127.0.0.1", 7405, "TRANSLATED")
    t.sh("nft", "add table ip t; add chain ip t c { type nat hook output priority -100; }; "
         "add rule ip t c tcp dport 7404 dnat to 127.0.0.1:7405")
    same(t, CLIENT, "127.0.0.1", 7404)


# A server that answers each byte, and a client that says when it is answered, until it is not.
ECHO = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2]))); print('ready', flush=True)
while True:
    c, _ = s.accept()
    try:
        while d := c.recv(100): c.sendall(d)
    except OSError as e: print('ended', e.errno, flush=True)
"""
TURNS = """
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); c.settimeout(0.5)
for n in range(80):
    try: c.sendall(b'x'); c.recv(1)
    except OSError: print('stopped', flush=True); break
    print('turn', n, flush=True); time.sleep(0.05)
"""


def stops(client):
    """A client of TURNS is stopped within a second."""
    until = time.monotonic() + 1
    while time.monotonic() < until and "stopped" not in client.said():
        time.sleep(0.05)
    before = client.said().count("turn")
    time.sleep(0.4)
    if client.said().count("turn") > before + 1:
        raise Late("a connection that a rule drops goes on for more than a second")


@attack("8: netfilter")
def rule_that_ends_an_open_connection(t):
    """A rule starts to drop packets of an open connection, which must stop within a second."""
    t.start()
    t.py(ECHO, "127.0.0.1", 7406)
    client = t.py(TURNS, "127.0.0.1", 7406, wait="turn 3")
    t.sh("nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c tcp dport 7406 drop")
    stops(client)


@attack("8: netfilter")
def rule_of_iptables_legacy_that_ends_an_open_connection(t):
    t.start()
    t.py(ECHO, "127.0.0.1", 7422)
    client = t.py(TURNS, "127.0.0.1", 7422, wait="turn 3")
    if t.sh("iptables-legacy", "-A", "OUTPUT", "-p", "tcp", "--dport", "7422", "-j", "DROP", check=False).returncode != 0:
        raise Inapplicable("no iptables-legacy in this kernel")
    stops(client)


# Attaches a program that refuses to the cgroup of a path, and prints `ready`; a second argument is the attach type.
CGROUP = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack('<QQ', 0xb7, 0x95)  # r0 = 0; exit
insns = ctypes.create_string_buffer(code); licence = ctypes.create_string_buffer(b'GPL')
kind = 8 if int(sys.argv[2]) < 2 else 18  # CGROUP_SKB, CGROUP_SOCK_ADDR
attr = struct.pack('<IIQQIIQII16sII', kind, 2, ctypes.addressof(insns), ctypes.addressof(licence), 0, 0, 0, 0, 0, b'', 0, int(sys.argv[2]))
buffer = ctypes.create_string_buffer(attr + bytes(60))
program = libc.syscall(321, 5, buffer, len(attr))
if program < 0: print('no BPF', os.strerror(ctypes.get_errno()), flush=True); sys.exit(1)
group = os.open(sys.argv[1], os.O_RDONLY)
attach = ctypes.create_string_buffer(struct.pack('<IIII', group, program, int(sys.argv[2]), 0))
if libc.syscall(321, 8, attach, 16) < 0: print('no attach', os.strerror(ctypes.get_errno()), flush=True); sys.exit(1)
print('ready', flush=True); time.sleep(30)
"""


def cgroup_of(t, kind):
    """A cgroup of its own: what starts a program in it, and what attaches such a program of BPF to it."""
    root = os.path.join(t.dir, "cgroup")
    os.makedirs(root)
    made = f"{root}/fastsock-red-{os.path.basename(t.dir)}"
    go = os.path.join(t.dir, "attach")
    script = (f"mount -t cgroup2 none {root} && mkdir {made} && echo made && until test -e {go}; do sleep 0.02; done && "
              f"{PYTHON} -c \"$0\" {made} {kind}; rmdir {made}")
    holder = Proc(t, ["unshare", "--mount", "sh", "-c", script, CGROUP])

    def wait(text):
        until = time.monotonic() + 60
        while text not in holder.said():
            if holder.popen.poll() is not None or time.monotonic() > until:
                raise Inapplicable(f"no cgroup programs: {holder.said()[-100:]}")
            time.sleep(0.02)
    wait("made")

    def attach():
        with open(go, "w"):
            pass
        wait("ready")
    mount = f"mount -t cgroup2 none {root} && echo $$ > {made}/cgroup.procs && exec \"$@\""

    def begin(script, *arguments, preload=True):
        inner = t.command(PYTHON, "-c", script, *arguments, preload=preload)
        return Proc(t, ["unshare", "--mount", "sh", "-c", mount, "sh", *inner])
    return begin, attach


def cgroup(t, kind):
    """A cgroup of its own with such a program; what enters it."""
    begin, attach = cgroup_of(t, kind)
    attach()
    return lambda *script, **how: begin(*script, **how).end().strip()


@attack("8: cgroup-BPF")
def cgroup_program_at_connect(t):
    """BPF_CGROUP_INET4_CONNECT refuses, as systemd's IPAddressDeny= and Cilium do."""
    served(t, 7407)
    run = cgroup(t, 10)
    kernel, ours = run(CLIENT, "127.0.0.1", 7407, preload=False), run(CLIENT, "127.0.0.1", 7407)
    if kernel.startswith("ERR") and not ours.startswith("ERR"):
        raise Broken(f"a program of the cgroup refuses ({kernel}); ours: {ours}")


@attack("8: cgroup-BPF")
def cgroup_program_that_ends_an_open_connection(t):
    """BPF_CGROUP_INET_EGRESS drops packets, as IPAddressDeny= of systemd, of a process that is connected already."""
    t.start()
    t.py(ECHO, "127.0.0.1", 7423)
    begin, attach = cgroup_of(t, 1)
    client = begin(TURNS, "127.0.0.1", 7423).wait_for("turn 3")
    attach()
    stops(client)


@attack("8: Landlock")
def landlock_at_connect(t):
    """A process has confined itself: no TCP connect at all (LANDLOCK_ACCESS_NET_CONNECT_TCP)."""
    served(t, 7408)
    confine = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
rules = libc.syscall(444, ctypes.create_string_buffer(struct.pack('<QQ', 0, 2)), 16, 0)
if rules < 0: print('none', flush=True); sys.exit()
libc.prctl(38, 1, 0, 0, 0)
libc.syscall(446, rules, 0)
""" + CLIENT
    if same(t, confine, "127.0.0.1", 7408) == "none":
        raise Inapplicable("no Landlock in this kernel")


@attack("8: seccomp")
def seccomp_at_connect(t):
    """A system call filter returns EPERM for connect(2)."""
    served(t, 7409)
    confine = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack('<HBBI', 0x20, 0, 0, 0) + struct.pack('<HBBI', 0x15, 0, 1, 42) + struct.pack('<HBBI', 6, 0, 0, 0x50001) \\
    + struct.pack('<HBBI', 6, 0, 0, 0x7fff0000)
keep = ctypes.create_string_buffer(code)
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack('<HxxxxxxQ', 4, ctypes.addressof(keep))), 0, 0): print('no filter')
""" + CLIENT
    same(t, confine, "127.0.0.1", 7409)


def device(t):
    """One more, d0, that no packet of the loopback's comes by."""
    t.ip("link", "add", "d0", "type", "veth", "peer", "name", "d1")
    t.ip("link", "set", "d1", "up")
    t.ip("address", "add", "10.8.0.1/24", "dev", "d0")
    t.ip("link", "set", "d0", "up")


@attack("7: SO_BINDTODEVICE")
def client_is_bound_to_a_device(t):
    served(t, 7410)
    device(t)
    script = CLIENT.replace("c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)",
                            "c = socket.socket(); c.settimeout(1); c.setsockopt(socket.SOL_SOCKET, 25, b'd0'); "
                            "c.connect((sys.argv[1], int(sys.argv[2])))")
    same(t, script, "127.0.0.1", 7410)


@attack("7: SO_BINDTODEVICE")
def listener_is_bound_to_a_device(t):
    t.start()
    device(t)
    script = SERVER.replace("s = socket.create_server((sys.argv[1], int(sys.argv[2])))",
                            "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 25, b'd0'); s.bind(('', int(sys.argv[2]))); s.listen()")
    t.py(script, "", 7411, "BOUND")
    same(t, CLIENT, "127.0.0.1", 7411)


@attack("7: SO_BINDTODEVICE")
def listener_is_bound_to_a_device_afterwards(t):
    """The listener is announced first, and bound to a device afterwards."""
    t.start()
    device(t)
    script = SERVER.replace("s = socket.create_server((sys.argv[1], int(sys.argv[2])))",
                            "s = socket.create_server(('', int(sys.argv[2]))); s.setsockopt(socket.SOL_SOCKET, 25, b'd0')")
    t.py(script, "", 7412, "BOUND")
    same(t, CLIENT, "127.0.0.1", 7412)


@attack("7: SO_BINDTODEVICE")
def listener_of_the_addresss_device_is_passed_over(t):
    """Of two listeners with SO_REUSEPORT, the one bound to the device that has the address gets its connections."""
    t.start()
    device(t)
    for name, bind in (("ANY", ""), ("BOUND", "s.setsockopt(socket.SOL_SOCKET, 25, b'd0'); ")):
        t.py(SERVER.replace("s = socket.create_server((sys.argv[1], int(sys.argv[2])))",
                            f"s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 15, 1); {bind}s.bind(('', int(sys.argv[2]))); s.listen()"),
             "", 7422, name)
    for _ in range(4):
        same(t, CLIENT, "10.8.0.1", 7422)


def local_rules(t, *rule):
    """A rule in front of the table of local addresses."""
    t.ip("rule", "add", "pref", "100", "lookup", "local")
    t.ip("rule", "del", "pref", "0")
    t.ip("rule", "add", "pref", "50", *rule)


@attack("7: routing rules")
def routing_rule_of_a_user(t):
    served(t, 7413)
    local_rules(t, "uidrange", "65534-65534", "prohibit")
    same(t, CLIENT, "127.0.0.1", 7413, user="nobody")


@attack("7: routing rules")
def routing_rule_of_the_servers_user(t):
    """The server's user has no route back: the kernel's SYN-ACK would not be sent, and no connection made."""
    served(t, 7420, user="nobody")
    local_rules(t, "uidrange", "65534-65534", "blackhole")
    same(t, CLIENT.replace(", 3)", ", 0.7)"), "127.0.0.1", 7420)


@attack("7: routing rules")
def routing_rule_and_a_liar(t):
    """The client's library does not ask before it connects."""
    served(t, 7421)
    local_rules(t, "uidrange", "65534-65534", "prohibit")
    liar = t.liar().attach()
    way = liar.may("route", liar("socket", "v4")[0], "127.0.0.1:7421")
    if way and way[0] == "local":
        raise Broken("nobody is led to a server that a rule of routing keeps him from")


@attack("7: routing rules")
def routing_rule_of_a_mark(t):
    served(t, 7414)
    local_rules(t, "fwmark", "7", "prohibit")
    script = CLIENT.replace("c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)",
                            "c = socket.socket(); c.settimeout(1); c.setsockopt(socket.SOL_SOCKET, 36, 7); "
                            "c.connect((sys.argv[1], int(sys.argv[2])))")
    same(t, script, "127.0.0.1", 7414)


@attack("7: routing rules")
def routing_rule_of_a_port(t):
    served(t, 7415)
    local_rules(t, "ipproto", "tcp", "dport", "7415", "unreachable")
    same(t, CLIENT, "127.0.0.1", 7415)


@attack("the kernel's choice of a listener")
def any_address_is_the_clients_own(t):
    """To a socket bound to an address, 0.0.0.0 is that address, where another process may listen."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7424, "ANOTHER")
    t.py(SERVER, "127.0.0.2", 7424, "ITS-OWN")
    script = CLIENT.replace("c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)",
                            "c = socket.socket(); c.settimeout(1); c.bind(('127.0.0.2', 0)); c.connect((sys.argv[1], int(sys.argv[2])))")
    same(t, script, "0.0.0.0", 7424)


@attack("the kernel's choice of a listener")
def ports_are_used_up(t):
    """No port is left for a connection there: connect(2) returns EADDRNOTAVAIL, although everything else permits it."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7431, "REAL")
    t.sh("sysctl", "-qw", "net.ipv4.ip_local_port_range=60000 60000")
    t.py("import socket, time\nc = socket.create_connection(('127.0.0.1', 7431)); print('ready', flush=True); time.sleep(20)", preload=False)
    if "ERR 99" not in t.run(CLIENT, "127.0.0.1", 7431, preload=False):
        raise RuntimeError("the kernel has a port left")
    said = t.run(CLIENT, "127.0.0.1", 7431)
    if "ERR 99" not in said:
        raise Broken(f"a connection is made that the kernel has no port for: {said}")


@attack("options of a listener")
def reuseport_group_with_a_program(t):
    """SO_ATTACH_REUSEPORT_CBPF sends every connection to the first socket of a group."""
    t.start()
    script = SERVER.replace("s = socket.create_server((sys.argv[1], int(sys.argv[2])))", """
import ctypes, struct
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind((sys.argv[1], int(sys.argv[2]))); s.listen()
if sys.argv[3] == 'FIRST':
    code = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0))
    s.setsockopt(socket.SOL_SOCKET, 51, struct.pack('<HxxxxxxQ', 1, ctypes.addressof(code)))""")
    t.py(script, "127.0.0.1", 7416, "FIRST")
    t.py(script, "127.0.0.1", 7416, "SECOND")
    many = "import socket\nprint({socket.create_connection(('127.0.0.1', 7416)).recv(10) for _ in range(12)})"
    kernel, ours = t.run(many, preload=False), t.run(many)
    if kernel != ours:
        raise Broken(f"the group's program is not asked: the kernel's clients reach {kernel}, ours {ours}")


@attack("options of a listener")
def socket_filter_of_a_listener(t):
    """SO_ATTACH_FILTER accepts no packet, so no connection is made."""
    t.start()
    script = SERVER.replace("print('ready'", """import ctypes, struct
code = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0))
s.setsockopt(socket.SOL_SOCKET, 26, struct.pack('<HxxxxxxQ', 1, ctypes.addressof(code)))
print('ready'""")
    t.py(script, "127.0.0.1", 7417, "FILTERED")
    same(t, CLIENT.replace(", 3)", ", 0.7)"), "127.0.0.1", 7417)


@attack("options of a listener")
def signed_segments_of_a_listener(t):
    """TCP_MD5SIG for the client's address: unsigned segments are ignored."""
    t.start()
    script = SERVER.replace("print('ready'", """import struct
address = struct.pack('<HH4s', 2, 0, socket.inet_aton('127.0.0.1')).ljust(128, b'\\0')
try: s.setsockopt(socket.IPPROTO_TCP, 14, address + struct.pack('<BBHi80s', 0, 0, 6, 0, b'secret'))
except OSError as e: print('no MD5', e, flush=True)
print('ready'""")
    if "no MD5" in t.py(script, "127.0.0.1", 7418, "SIGNED").said():
        raise Inapplicable("no TCP_MD5SIG in this kernel")
    same(t, CLIENT.replace(", 3)", ", 0.7)"), "127.0.0.1", 7418)


@attack("options of a listener")
def least_ttl_of_a_listener(t):
    """IP_MINTTL of 255: only near hosts are accepted, as BGP wants it."""
    t.start()
    script = SERVER.replace("print('ready'", "s.setsockopt(socket.IPPROTO_IP, 21, 255)\nprint('ready'")
    t.py(script, "127.0.0.1", 7419, "NEAR")
    same(t, CLIENT.replace(", 3)", ", 0.7)"), "127.0.0.1", 7419)
