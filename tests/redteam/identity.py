"""Who is at the other end: attacks that make one party take another for somebody else."""

import time

from attacks import attack
from stage import CLIENT, SERVER, Broken

# Binds, listens, says so, and closes by a system call of its own what the library believes to have: mov eax, 3; syscall; ret.
SQUATTER = """
import ctypes, mmap, socket, sys, time
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b'\\xb8\\x03\\0\\0\\0\\x0f\\x05\\xc3')
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(at)(s.fileno())
print('ready', flush=True)
while True:
    try:
        c, a = s.accept(); c.sendall(b'EVIL'); c.close()
    except OSError: time.sleep(0.01)
"""


def expect(said, real, what):
    if real not in said:
        raise Broken(f"{what}: the client was given {said!r}")


@attack("1: an address in the attacker's namespace")
def namespace_takes_an_address(t):
    """The attacker's own network namespace has the address of a real host, and a listener there."""
    t.start()
    t.pair()
    t.py(SERVER, "10.9.0.2", 7001, "REAL", ns=t.world, preload=False)
    inside = "import os, sys; os.system('ip link set lo up; ip address add 10.9.0.2/32 dev lo')\n" + SERVER
    t.py(inside, "10.9.0.2", 7001, "EVIL", user="nobody", userns=True)
    expect(t.run(CLIENT, "10.9.0.2", 7001), "REAL", "10.9.0.2 is nobody's namespace")


@attack("1: an address in the attacker's namespace")
def namespace_takes_the_own_address(t):
    """As before, with an address of the host itself at which no accelerated server listens."""
    t.start()
    t.ip("address", "add", "10.9.9.1/32", "dev", "lo")
    t.py(SERVER, "10.9.9.1", 7001, "REAL", preload=False)
    inside = "import os, sys; os.system('ip link set lo up; ip address add 10.9.9.1/32 dev lo')\n" + SERVER
    t.py(inside, "10.9.9.1", 7001, "EVIL", user="nobody", userns=True)
    expect(t.run(CLIENT, "10.9.9.1", 7001), "REAL", "the host's address is nobody's namespace")


@attack("2: a released port")
def port_is_closed_behind_the_back(t):
    """The attacker announces a listener and closes its placeholder. Clients of the port's next owner would get the
    attacker."""
    t.start()
    t.py(SQUATTER, "127.0.0.1", 15432, user="nobody")
    if t.rival(SERVER, "127.0.0.1", 15432, "REAL", preload=False):
        expect(t.run(CLIENT, "127.0.0.1", 15432), "REAL", "127.0.0.1:15432 is nobody's, who has closed it")


def squat(t, let_go):
    """A liar that announces a listener, lets the port go, and serves who comes to it all the same."""
    t.start()
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("reuse", fd, "addr")
    liar("bind", fd, "127.0.0.1:15432")
    liar("klisten", fd, 16)
    listener = liar("listen", fd)[0]
    let_go(liar, fd)
    if not t.rival(SERVER, "127.0.0.1", 15432, "REAL"):
        return
    client = t.py(CLIENT, "127.0.0.1", 15432, wait=None)
    sides = {}
    while client.popen.poll() is None:
        for arena in range(1, 6):
            if arena not in sides:
                memory = liar.may("arena", arena)
                if memory and memory[0] == "B":
                    sides[arena] = liar("map", memory[1], "B")[0]
            channel = liar.may("accept", sides[arena]) if arena in sides else None
            if channel:
                liar("send", channel[0], "EVIL")
        time.sleep(0.005)
    expect(client.end(6), "REAL", f"listener {listener}, which the kernel knows no more, still gets connections")


@attack("2: a released port")
def port_is_closed_by_a_liar(t):
    squat(t, lambda liar, fd: liar("close", fd))


@attack("2: a released port")
def port_is_shut_and_kept(t):
    """The descriptor stays open and its cookie valid, but the socket no longer listens, and SO_REUSEADDR lets another
    process bind."""
    squat(t, lambda liar, fd: liar("kshutdown", fd))


@attack("2: a released port")
def port_is_left_for_another(t):
    """The placeholder is disconnected, which frees the port, and listens on another port."""
    def go_elsewhere(liar, fd):
        liar("kunconnect", fd)
        liar.may("klisten", fd, 16)
        liar.may("close", fd)
    squat(t, go_elsewhere)


@attack("2: a released port")
def port_of_a_dead_exec(t):
    """The listener is announced and then passed by exec to a program without the library, which closes nothing.
    Another process binds."""
    t.start()
    script = SQUATTER.replace("while True:", "import os\nos.execv('/bin/sleep', ['sleep', '20'])\nwhile True:")
    t.py(script, "127.0.0.1", 15433, user="nobody")
    if t.rival(SERVER, "127.0.0.1", 15433, "REAL", preload=False):
        expect(t.run(CLIENT, "127.0.0.1", 15433), "REAL", "a listener of a program that is gone gets connections")


def lied_address(t, lie, listen="127.0.0.1", family="v4", holder=None):
    """What a server sees of a liar's connection that says it comes from `lie`, which `holder` has."""
    t.start()
    if holder:
        t.py(holder, preload=False)
    server = t.py(SERVER, listen, 7002, "HELLO")
    liar = t.liar().attach()
    fd = liar("socket", family)[0]
    ip = f"[{listen}]" if family == "v6" else listen
    route = liar.may("route", fd, f"{ip}:7002")
    if not route or route[0] != "local":
        raise RuntimeError(f"not routed: {route}")
    memory = route[1].split(",")[0].split(":")[1]
    side = liar("map", memory, "A")[0]
    try:
        channel = liar("open", side, lie, f"{ip}:7002")[0]
        liar.may("recv", channel)
    except Exception as error:  # refused: nothing was gained
        print(error)
    t.run(CLIENT, listen, 7002)
    return [tuple(line.split()) for line in server.lines("peer")]


def reject(peers, gained):
    for ip, port in peers:
        if gained(ip, int(port)):
            raise Broken(f"the server was told that its peer is {ip}:{port}")


@attack("4: a forged peer address")
def peer_address_of_another_host(t):
    reject(lied_address(t, "10.1.2.3:40000"), lambda ip, _: ip == "10.1.2.3")


@attack("4: a forged peer address")
def peer_port_of_the_superuser(t):
    """A source port below 1024, which only root can bind and rsh and NFS take as proof."""
    reject(lied_address(t, "127.0.0.1:600"), lambda _, port: port == 600)


@attack("4: a forged peer address")
def peer_port_of_another_connection(t):
    """The source port of another user's connection: servers that identify clients by it confuse them."""
    holder = "import socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 41234)); print('ready', flush=True); time.sleep(60)"
    reject(lied_address(t, "127.0.0.1:41234", holder=holder), lambda _, port: port == 41234)


def twice(t, claims):
    """Whether a server sees one port of two connections that are open together: of one that comes from where the daemon says,
    and of one that `claims` makes say the same."""
    t.start()
    script = SERVER.replace("c.close()", "open.append(c)").replace("import ", "open = []\nimport ", 1)
    server = t.py(script, "127.0.0.1", 7025, "HELLO")

    def side():
        liar = t.liar().attach()
        way = liar("route", liar("socket", "v4")[0], "127.0.0.1:7025")
        return liar, liar("map", way[1].split(",")[0].split(":")[1], "A")[0]

    liar, arena = side()
    channel, _ = liar("open", arena, "127.0.0.1:0", "127.0.0.1:7025")
    liar("recv", channel)
    port = int(liar("local", channel)[0].rstrip(")").rpartition(":")[2])
    claims(liar, arena, port, side)
    t.run(CLIENT, "127.0.0.1", 7025)
    seen = [int(line.split()[1]) for line in server.lines("peer")]
    if port not in seen:
        raise RuntimeError(f"who says what is true is not accepted: {port} is not among {seen}")
    if seen.count(port) > 1:
        raise Broken(f"a server has two clients at port {port}: {seen}")


@attack("4: a forged peer address")
def peer_port_that_another_is_lent(t):
    """The source port leased to another process's connection through memory, which no socket of that process has."""
    def claims(_, __, port, side):
        other, arena = side()
        channel = other.may("open", arena, f"127.0.0.1:{port}", "127.0.0.1:7025")
        if channel:
            other.may("recv", channel[0])
    twice(t, claims)


@attack("4: a forged peer address")
def peer_port_of_ones_own_twice(t):
    """As before, with the port of the attacker's own connection: two connections with one pair of addresses."""
    def claims(liar, arena, port, _):
        channel = liar.may("open", arena, f"127.0.0.1:{port}", "127.0.0.1:7025")
        if channel:
            liar.may("recv", channel[0])
    twice(t, claims)


@attack("4: a forged peer address")
def peer_port_where_a_policy_leaves_the_server(t):
    """As before, for a server that takes ports as proof, and that a policy leaves to the kernel."""
    t.start(config='[[policy]]\ncarrier = "kernel"\ncall = "bind"\nports = 7024\n')
    t.py(SERVER, "127.0.0.1", 7024, "HELLO")
    liar = t.liar().attach()
    route = liar.may("route", liar("socket", "v4")[0], "127.0.0.1:7024")
    if route and route[0] == "local":
        raise Broken("nobody has memory with a server that a policy leaves to the kernel")


@attack("4: a forged peer address")
def peer_address_of_another_family(t):
    """An IPv6 peer at an IPv4 listener: a server that reads a sockaddr_in would read beyond it."""
    def wrong(ip, _):
        return ":" in ip
    reject(lied_address(t, "[2001:db8::1]:40000"), wrong)


@attack("4: a forged peer address")
def peer_address_changes_after_accept(t):
    """accept(2) returned the true address, and getpeername(2) gets another one."""
    t.start()
    script = SERVER.replace("c.sendall(sys.argv[3].encode())", "c.sendall(b'HELLO'); c.recv(1); print('peer', *c.getpeername(), flush=True)")
    server = t.py(script, "127.0.0.1", 7003, "HELLO")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    route = liar("route", fd, "127.0.0.1:7003")
    memory = route[1].split(",")[0].split(":")[1]
    channel, slot = liar("open", liar("map", memory, "A")[0], "127.0.0.1:0", "127.0.0.1:7003")
    liar("recv", channel)
    liar("addr", memory, slot, 0, "10.1.2.3:1")
    liar("send", channel, "x")
    server.wait_for("peer")
    for _ in range(200):
        if len(server.lines("peer")) > 1:
            break
        time.sleep(0.01)
    reject([tuple(line.split()) for line in server.lines("peer")], lambda ip, _: ip == "10.1.2.3")


@attack("4: a forged peer address")
def server_changes_the_clients_peer(t):
    """The attacker's server writes another address for itself: its client's getpeername(2) returns an address that the
    client did not connect to."""
    t.start()
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("bind", fd, "127.0.0.1:7004")
    liar("klisten", fd, 16)
    liar("listen", fd)
    script = CLIENT.replace("print(c.recv(100)", "c.recv(1); print('peer', *c.getpeername()); print(c.recv(0)")
    client = t.py(script, "127.0.0.1", 7004, wait=None)
    memory = None
    for _ in range(400):
        memory = next(filter(None, (liar.may("arena", arena) for arena in range(1, 4))), None)
        channel = liar.may("accept", liar("map", memory[1], "B")[0]) if memory else None
        if channel:
            break
        time.sleep(0.005)
    else:
        raise RuntimeError("the client did not come by memory")
    liar("addr", memory[1], channel[1], 1, "10.1.2.3:443")
    liar("send", channel[0], "xx")
    reject([tuple(line.split()) for line in client.end() and client.lines("peer")], lambda ip, _: ip == "10.1.2.3")


# A parent that passes a connection of its to a child over a Unix socket, as systemd, haproxy and nginx do. With the library.
PASSER = """
import array, os, socket, sys, time
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
pid = os.fork()
if pid == 0:
    a.close(); s.close()
    data, fds, _, _ = socket.recv_fds(b, 1, 1)
    c = socket.socket(fileno=fds[0])
    c.settimeout(3)
    try: c.sendall(b'SECRET-OF-THE-CLIENT'); print('passed', c.recv(100), flush=True)
    except OSError as e: print('passed', e, flush=True)
    os._exit(0)
print('ready', flush=True)
c, _ = s.accept()
import struct
print('cookie', struct.unpack('Q', c.getsockopt(socket.SOL_SOCKET, 57, 8))[0], flush=True)
sys.stdout.flush(); time.sleep(float(sys.argv[2]))
socket.send_fds(a, [b'x'], [c.fileno()])
c.close()
os.waitpid(pid, 0)
time.sleep(1)
"""


# Answers once, and says how the connection ends.
TWICE = """
import errno, socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
c, _ = s.accept()
c.sendall(c.recv(1))
try: print('end', c.recv(1), flush=True)
except OSError as e: print('end', errno.errorcode[e.errno], flush=True)
"""


def own_channel(t, liar, port):
    """A connection from a liar to itself: arena, slot, memory, and both ends."""
    fd = liar("socket", "v4")[0]
    liar("bind", fd, f"127.0.0.1:{port}")
    liar("klisten", fd, 16)
    listener = liar("listen", fd)[0]
    client = liar("socket", "v4")[0]
    arena, memory = liar("route", client, f"127.0.0.1:{port}")[1].split(":")
    near = liar("open", liar("map", memory, "A")[0], "127.0.0.1:0", f"127.0.0.1:{port}")
    far = liar("accept", liar("map", liar("arena", arena, "B")[1], "B")[0])
    return arena, near[1], near[0], far[0], listener, client


@attack("5: a forged cookie in the attachment page")
def passed_socket_is_another(t):
    """The attacker writes the cookie of another user's socket into its own page and shares that. The receiver would
    get the attacker's channel."""
    t.start()
    victim = t.py(PASSER, 7005, 1.0)
    client = t.py("import socket, sys, time\nc = socket.create_connection(('127.0.0.1', 7005)); c.settimeout(4)\n"
                  "c.sendall(b'FROM-THE-CLIENT')\ntry: print('got', c.recv(100))\nexcept OSError as e: print('got', e)", wait=None,
                  preload=False)
    victim.wait_for("cookie")
    cookie = victim.lines("cookie")[0]
    liar = t.liar().attach()
    arena, slot, near, far, _, _ = own_channel(t, liar, 7006)
    liar("entry", 5, f"{arena}/{slot}/B", cookie)
    for _ in range(8):
        liar.may("share", f"{arena}/{slot}/B", cookie, 5)
    liar("send", near, "EVIL")
    victim.wait_for("passed", 8)
    stolen = liar.may("recv", near)
    if stolen and "SECRET" in stolen[0] or "EVIL" in victim.said():
        raise Broken(f"the receiver talks to nobody: {victim.lines('passed')}, who read {stolen}")
    client.end()


@attack("5: a forged cookie in the attachment page")
def inherited_socket_is_another(t):
    """As before, where nothing was shared: the cookie of a kernel socket, which is in no page."""
    t.start()
    liar = t.liar().attach()
    arena, slot, near, _, _, _ = own_channel(t, liar, 7006)
    t.py(SERVER, "127.0.0.1", 7007, "REAL", preload=False)
    parent = ("import os, socket, struct, sys, time\nc = socket.create_connection(('127.0.0.1', 7007))\n"
              "print('cookie', struct.unpack('Q', c.getsockopt(socket.SOL_SOCKET, 57, 8))[0], flush=True)\ntime.sleep(1)\n"
              "c.set_inheritable(True)\nos.environ.update(LD_PRELOAD=sys.argv[1])\n"
              "os.execv(sys.executable, ['python3', '-c', "
              "'import socket, sys; c = socket.socket(fileno=int(sys.argv[1])); c.settimeout(3); print(\"got\", c.recv(100))', str(c.fileno())])")
    victim = t.py(parent, f"{t.dir}/libfastsock.so", preload=False, wait="cookie")
    liar("entry", 5, f"{arena}/{slot}/B", victim.lines("cookie")[0])
    liar("send", near, "EVIL")
    if "EVIL" in victim.end():
        raise Broken("a kernel connection that was inherited reads nobody's bytes")


@attack("5: a forged cookie in the attachment page")
def listener_of_another_is_claimed(t):
    """The attacker presents its own listener as another user's: that cookie in its page, and its holder as the next
    heir."""
    t.start()
    liar = t.liar().attach()
    _, _, _, _, listener, _ = own_channel(t, liar, 7006)
    parent = ("import os, socket, struct, sys, time\nc = socket.create_server(('127.0.0.1', 7008))\n"
              "print('cookie', struct.unpack('Q', c.getsockopt(socket.SOL_SOCKET, 57, 8))[0], flush=True)\ntime.sleep(1)\n"
              "c.set_inheritable(True)\nos.environ.update(LD_PRELOAD=sys.argv[1])\n"
              "os.execv(sys.executable, ['python3', '-c', "
              "'import socket, sys; c = socket.socket(fileno=int(sys.argv[1])); c.settimeout(2); c, _ = c.accept(); print(\"got\", c.recv(100), c.getsockname()[1])', str(c.fileno())])")
    victim = t.py(parent, f"{t.dir}/libfastsock.so", preload=False, wait="cookie")
    liar("entry", 6, listener, victim.lines("cookie")[0])
    time.sleep(1.2)
    client = liar("socket", "v4")[0]
    _, memory = liar("route", client, "127.0.0.1:7006")[1].split(":")
    liar("send", liar("open", liar("map", memory, "A")[0], "10.1.2.3:1", "127.0.0.1:7008")[0], "EVIL")
    if "EVIL" in victim.end():
        raise Broken("a server that inherited its listener accepts from nobody's")


@attack("5: a forged descriptor")
def share_of_what_is_not_held(t):
    """A channel of a victim's arena, with a guessed number, in the attacker's page: shared and claimed."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7009, "REAL", "wait")
    t.py("import socket, time\nc = socket.create_connection(('127.0.0.1', 7009)); print('ready', flush=True); time.sleep(9)")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    cookie = liar("cookie", fd)[0]
    for arena in range(1, 4):
        for side in "AB":
            liar("entry", 7, f"{arena}/0/{side}", cookie)
            if liar.may("share", f"{arena}/0/{side}", cookie, 7) or liar.may("claim", fd):
                raise Broken(f"nobody has a channel of arena {arena}, which is others'")


@attack("a forged side of a connection")
def side_of_the_peer(t):
    """A client claims its server's end of its own connection in its page: the daemon closes the page, or the client
    claims the end."""
    t.start()
    server = t.py(TWICE, 7010)
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    cookie = liar("cookie", fd)[0]
    arena, memory = liar("route", fd, "127.0.0.1:7010")[1].split(":")
    channel, slot = liar("open", liar("map", memory, "A")[0], "127.0.0.1:0", "127.0.0.1:7010")
    liar("send", channel, "1")
    liar("recv", channel)
    liar("entry", 5, f"{arena}/{slot}/A", cookie)
    liar("entry", 7, f"{arena}/{slot}/B", cookie)
    if liar.may("arena", arena, "B") or liar.may("share", f"{arena}/{slot}/B", cookie, 7):
        raise Broken("a client is given its server's side")
    # It goes, and what its page names with it.
    claimed = liar.may("claim", fd)
    if claimed and claimed[0].endswith("B"):
        raise Broken("a client has claimed its server's side")
    liar.stop()
    server.wait_for("end", 8)
    if "end b''" not in server.said() and "ECONNRESET" not in server.said():
        raise Broken(f"a server's end was closed for it: {server.lines('end')}")


@attack("arenas of other processes")
def arena_of_others(t):
    t.start()
    t.py(SERVER, "127.0.0.1", 7009, "REAL", "wait")
    t.py("import socket, time\nc = socket.create_connection(('127.0.0.1', 7009)); print('ready', flush=True); time.sleep(9)")
    liar = t.liar().attach()
    for number in range(0, 20):
        for what in ("arena", "lpage", "lpoller", "watch", "leave", "shut", "bell"):
            answer = liar.may(what, number)
            if answer:
                raise Broken(f"{what} {number} of others: {answer}")


@attack("another process's listener")
def listener_of_others_ends(t):
    """The attacker ends, shuts down and leaves all listeners, and has all ports checked."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7010, "REAL")
    liar = t.liar().attach()
    for number in range(0, 20):
        for what in ("unlisten", "watch", "unwatch", "shut", "leave", "trim", "spawned", "inherit", "ports"):
            liar.may(what, number)
    before = t.counter("local_connections")
    said = t.run(CLIENT, "127.0.0.1", 7010)
    if "REAL" not in said or t.counter("local_connections") == before:
        raise Broken(f"a listener of root's was ended: {said}")


@attack("another user's daemon")
def daemon_of_another_user(t):
    """A program of root's finds the control socket of the attacker's daemon (XDG_RUNTIME_DIR kept by su(1)) and must
    not use it."""
    runtime = f"{t.dir}/runtime"
    __import__("os").makedirs(f"{runtime}/fastsock")
    __import__("shutil").chown(f"{runtime}/fastsock", "nobody")
    control = f"{runtime}/fastsock/control.sock"
    evil = t.command(f"{t.dir}/fastsock", "up", "--only-local", user="nobody", preload=False, control=control)
    from stage import Proc
    daemon = Proc(t, evil).wait_for("ready")
    t.control = control
    t.daemon = daemon
    t.py(SERVER, "127.0.0.1", 7011, "NOBODY", user="nobody")
    before = t.counter("attached")
    command = t.command("env", "-u", "FASTSOCK_CONTROL", f"XDG_RUNTIME_DIR={runtime}", f"LD_PRELOAD={t.dir}/libfastsock.so",
                        "/usr/bin/python3", "-c", CLIENT, "127.0.0.1", 7011, preload=False)
    Proc(t, command).end()
    if t.counter("attached") != before:
        raise Broken("a program of root's has attached itself to nobody's daemon")
