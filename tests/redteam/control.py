"""The daemon's control thread: what a user may ask of it, and how much."""

import time

from attacks import attack
from stage import CLIENT, PYTHON, SERVER, Broken, Late, Proc


def busy(t, what, most=0.4, seconds=0.8, waiting=True):
    """The daemon must be idle when nobody asks it anything."""
    before = t.wanted(waiting)
    time.sleep(seconds)
    share = (t.wanted(waiting) - before) / seconds
    if share > most:
        raise Late(f"{what}: the daemon uses {share:.0%} of a CPU for nothing, for as long as the attacker likes")


@attack("9: the control thread")
def exec_that_never_ends(t):
    """The daemon notices an exec by a socket of which the attacker keeps a copy: its end is reported for ever."""
    t.start()
    liar = t.liar().attach()
    near, far = liar("pair")
    liar("exec", near)
    liar("close", far)
    time.sleep(0.1)
    busy(t, "Exec with a socket that stays open")


@attack("9: the control thread")
def exec_that_is_taken_back(t):
    t.start()
    liar = t.liar().attach()
    near, far = liar("pair")
    liar("exec", near)
    liar("execfailed")
    liar("close", far)
    busy(t, "ExecFailed after Exec with a socket that stays open")


@attack("9: the control thread")
def fork_that_ends(t):
    """As before with the child's connection: it is hung up, and its socket stays readable."""
    t.start()
    liar = t.liar().attach()
    near, far = liar("pair")
    copy = liar("dup", far)[0]
    liar("fork", far)
    liar("raw", "00" * 8, near)
    liar("close", near)
    time.sleep(0.2)
    busy(t, "Fork with a socket that stays open")
    del copy


@attack("9: the control thread")
def listener_that_is_given_up(t):
    """A listener is announced, given up, and then shut down. In between the daemon has checked its socket."""
    t.start()
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("bind", fd, "127.0.0.1:7211")
    liar("klisten", fd, 16)
    liar("unlisten", liar("listen", fd)[0])
    liar("kshutdown", fd)
    time.sleep(0.1)
    busy(t, "a listener that was given up and shut down")


@attack("9: the control thread")
def fork_into_the_daemon_itself(t):
    """The child's connection leads to the daemon's own control socket, so the daemon would talk to itself, with its
    own credentials."""
    t.start()
    liar = t.liar().attach()
    loop = liar("unix")[0]
    copy = liar("dup", loop)[0]
    liar.may("fork", loop)
    liar.may("raw", "ff000000" + "01000000", copy)
    time.sleep(0.1)
    busy(t, "the daemon answers its own answers")


@attack("9: the daemon's memory")
def fork_of_a_full_page(t):
    """A child's page is a copy of its parent's, which the daemon writes: 16 MiB of its own memory per message."""
    t.start()
    liar = t.liar().attach()
    liar("fill", 1 << 20)
    before = t.memory()
    for _ in range(6):
        liar.may("fork", liar("pair")[1])
    time.sleep(1)
    grown = t.memory() - before
    if grown > 24 << 20:
        raise Broken(f"six messages made the daemon {grown >> 20} MiB larger; half of all attachments may do so")


@attack("9: the daemon's memory")
def fork_of_a_page_of_listeners(t):
    """As before, with one listener that a million descriptors claim to be."""
    t.start()
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("klisten", fd, 16)
    liar("fill", 1 << 20, liar("listen", fd)[0])
    before = t.memory()
    for _ in range(6):
        liar.may("fork", liar("pair")[1])
    time.sleep(1)
    grown = t.memory() - before
    # The page itself, which the daemon reads, and one copy.
    if grown > 40 << 20:
        raise Broken(f"six messages made the daemon {grown >> 20} MiB larger; half of all attachments may do so")


@attack("9: the control thread")
def list_of_a_full_page(t):
    """Some connections keep requesting lists of a process with a million entries. Honest requests must not wait long."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7201, "REAL")
    liar = t.liar().attach()
    liar("fill", (1 << 20) - 1)
    ask = """
import socket, struct, sys, time
conns = []
for _ in range(60):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.setblocking(False); conns.append(s)
# Request::Sockets from the last entry of the attacker's page on
ask = struct.pack('<HHIQ', 17, 0, 1, int(sys.argv[2]) << 32 | (1 << 20) - 10)
print('ready', flush=True)
until = time.monotonic() + 8
while time.monotonic() < until:
    for s in conns:
        try: s.send(ask)
        except OSError: pass
        try:
            while s.recv(16384): pass
        except OSError: pass
    time.sleep(0.001)
"""
    t.py(ask, t.control, liar.number, user="nobody", preload=False)
    time.sleep(0.5)
    begun = time.monotonic()
    said = t.run(CLIENT, "127.0.0.1", 7201)
    waited = time.monotonic() - begun
    if waited > 1.5:
        raise Late(f"a connect(2) of somebody else took {waited:.1f} s ({said})")


@attack("9: the list of sockets")
def list_of_others_sockets(t):
    t.start()
    t.py(SERVER, "127.0.0.1", 7202, "REAL")
    liar = t.liar().attach()
    row = [word for word in liar("sockets") if ":7202" in word]
    if row:
        raise Broken(f"nobody is told process and descriptor of root's socket: {row[0]}")


@attack("9: the list of sockets")
def list_of_other_namespaces(t):
    """A listener in another network namespace, which the user's tools would not show at all."""
    t.start()
    other = t.space("other")
    t.py(SERVER, "127.0.0.1", 7203, "REAL", ns=other)
    liar = t.liar().attach()
    if any(":7203" in word for word in liar("sockets")):
        raise Broken("nobody is shown the listener of another network namespace")


@attack("process names that root sees")
def name_with_an_escape(t):
    """A name with an escape sequence for the terminal of the reader."""
    t.start()
    liar = t.liar()
    liar("connect")
    liar("hello-as", b"\x1b]0;owned\x07\x1b[2J".hex())
    fd = liar("socket", "v4")[0]
    liar("bind", fd, "127.0.0.1:7204")
    liar("klisten", fd, 1)
    listener = liar("listen", fd)[0]
    liar("entry", 3, listener, 0)
    shown = t.fastsock("ss").stdout
    if "7204" not in shown:
        raise RuntimeError(f"not in the list: {shown}")
    if "\x1b" in shown or "\x07" in shown:
        raise Broken("`fastsock ss` writes a user's escape sequences to root's terminal")


@attack("9: the control thread")
def lent_ports_are_used_up(t):
    """The attacker requests a port for each slot of each of its arenas: these are bound, and no connection uses them."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7221, "REAL")
    liar = t.liar().attach()
    taken = 0
    for port in range(7222, 7226):
        fd = liar("socket", "v4")[0]
        liar("bind", fd, f"127.0.0.1:{port}")
        liar("klisten", fd, 16)
        liar("listen", fd)
        way = liar.may("route", liar("socket", "v4")[0], f"127.0.0.1:{port}")
        if not way or way[0] != "local":
            break
        arena = way[1].split(",")[0].split(":")[0]
        for slot in [2**power for power in range(2, 5)] + list(range(32, 16384, 32)):
            taken += liar.may("lend", arena, slot) is not None
    before = t.counter("local_connections")
    if "REAL" not in t.run(CLIENT, "127.0.0.1", 7221):
        raise Broken("a client of root's is not served")
    if t.counter("local_connections") == before:
        raise Broken(f"after {taken} blocks of ports for nobody a client of root's is left to the kernel")
    many = "import socket\ns = []\ntry:\n    for _ in range(9000): s.append(socket.socket()); s[-1].bind(('', 0))\nexcept OSError as e: print('none is left', len(s), e)"
    said = t.run("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (10000, 10000))\n" + many, preload=False)
    if "none is left" in said:
        raise Broken(f"after {taken} blocks of ports for nobody the kernel has no port: {said!r}")


@attack("9: two users fill a limit")
def two_users_take_all_attachments(t):
    t.start(config="[limits]\nattachments = 16\n")
    for user in ("nobody", "games"):
        liar = t.liar(user=user)
        for _ in range(20):
            liar.may("more")
        t.keep = liar
    root = t.liar(user=None)
    root("connect")
    if not root.may("hello"):
        raise Broken("two users have all attachments, and root has none")


@attack("9: two users fill a limit")
def two_users_take_all_listeners(t):
    t.start(config="[limits]\nlisteners = 16\n")
    for n, user in enumerate(("nobody", "games")):
        liar = t.liar(user=user).attach()
        for port in range(20):
            fd = liar("socket", "v4")[0]
            liar("bind", fd, f"127.0.0.1:{7300 + 20 * n + port}")
            liar("klisten", fd, 1)
            liar.may("listen", fd)
    root = t.liar(user=None).attach()
    fd = root("socket", "v4")[0]
    root("bind", fd, "127.0.0.1:7399")
    root("klisten", fd, 1)
    if not root.may("listen", fd):
        raise Broken("two users have all listeners, and root has none")


@attack("9: two users fill a limit")
def two_users_take_all_lent_ports(t):
    """In a namespace with few ports to choose from: at most half of them are leased, and some of that is reserved for
    root."""
    t.start()
    t.sh("sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 41999")
    t.py(SERVER, "127.0.0.1", 7230, "REAL")
    t.keep, taken = [], 0
    for n, user in enumerate(("nobody", "games")):
        liar = t.liar(user=user).attach()
        t.keep.append(liar)
        fd = liar("socket", "v4")[0]
        liar("bind", fd, f"127.0.0.1:{7231 + n}")
        liar("klisten", fd, 16)
        liar("listen", fd)
        way = liar("route", liar("socket", "v4")[0], f"127.0.0.1:{7231 + n}")
        arena = way[1].split(",")[0].split(":")[0]
        for slot in range(32, 4096, 32):
            taken += liar.may("lend", arena, slot) is not None
    if taken < 20:
        raise RuntimeError(f"few were taken: {taken} blocks")
    before = t.counter("local_connections")
    if "REAL" not in t.run(CLIENT, "127.0.0.1", 7230):
        raise Broken("a client of root's is not served")
    if t.counter("local_connections") == before:
        raise Broken(f"two users have all ports that are lent ({taken} blocks), and root has none")


@attack("9: two users fill a limit")
def two_users_take_all_descriptors(t):
    """A daemon may have fewer descriptors than its limits need: the last ones are root's, whose connections still use
    memory."""
    t.start(env=("prlimit", "--nofile=320:320"))
    t.py(SERVER, "127.0.0.1", 7206, "REAL")
    t.keep = [t.liar(user=user) for user in ("nobody", "games")]
    for liar in t.keep:
        liar.may("crowd", 160, "127.0.0.1:7206")
    before = t.counter("local_connections")
    said = t.run(CLIENT, "127.0.0.1", 7206)
    if "REAL" not in said:
        raise Broken(f"two users have all descriptors of the daemon's, and root is not served: {said}")
    # Who asks for counters may be answered with those of a moment ago.
    until = time.monotonic() + 30
    while t.counter("local_connections") == before:
        if time.monotonic() > until:
            raise Broken("two users have all descriptors of the daemon's, and root's connections are the kernel's")


@attack("9: namespaces")
def namespace_that_changes_all_the_time(t):
    """The attacker adds and removes an address in its own namespace: all cached routes would be asked for again, and
    all addresses read."""
    t.start()
    churn = """
import os, socket, subprocess, sys
subprocess.run('ip link set lo up', shell=True)
batch = ''.join(f'address add 10.{n >> 8}.{n & 255}.1/32 dev lo\\n' for n in range(1500))
subprocess.run(['ip', '-batch', '-'], input=batch, text=True)
s = socket.create_server(('127.0.0.1', 7205))
print('ready', flush=True)
flap = 'address add 192.0.2.1/32 dev lo\\naddress del 192.0.2.1/32 dev lo\\n' * 20000
subprocess.run(['ip', '-batch', '-'], input=flap, text=True)
"""
    t.py(churn, user="nobody", userns=True)
    time.sleep(0.3)
    busy(t, "addresses that come and go in a user's namespace", most=0.25, seconds=1.0, waiting=False)


@attack("9: namespaces")
def routes_are_forgotten_for_a_strangers_namespace(t):
    """As before, seen by a client: whether its cached route stays valid."""
    t.start()
    liar = t.liar(user=None).attach()
    churn = ("import socket, subprocess\nsubprocess.run('ip link set lo up', shell=True)\n"
             "s = socket.create_server(('127.0.0.1', 7206)); print('ready', flush=True)\n"
             "flap = 'address add 192.0.2.1/32 dev lo\\naddress del 192.0.2.1/32 dev lo\\n' * 20000\n"
             "subprocess.run(['ip', '-batch', '-'], input=flap, text=True)")
    t.py(churn, user="nobody", userns=True)
    time.sleep(0.2)
    before = int(liar("peek", liar.directory, 0)[0])
    time.sleep(0.5)
    changes = int(liar("peek", liar.directory, 0)[0]) - before
    if changes > 20:
        raise Late(f"what root's processes know of their ways was made void {changes} times in half a second, by nobody")


@attack("a new rule")
def reload_denies_and_a_liar_goes_on(t):
    """A rule that is loaded later forbids the connection, and a client that ignores the generation connects all the
    same."""
    t.start(config="")
    t.py(SERVER, "127.0.0.1", 7207, "REAL")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    memory = liar("route", fd, "127.0.0.1:7207")[1].split(":")[1]
    side = liar("map", memory, "A")[0]
    with open(t.config, "w") as file:
        file.write('[[rule]]\naction = "deny"\ncall = "connect"\nuser = "nobody"\nports = 7207\n')
    t.daemon.popen.send_signal(1)
    other = t.liar().attach()
    fd = other("socket", "v4")[0]
    for _ in range(1000):
        if not other.may("route", fd, "127.0.0.1:7207"):
            break
        time.sleep(0.02)
    else:
        raise RuntimeError("the rule is not in force")
    channel = liar.may("open", side, "127.0.0.1:0", "127.0.0.1:7207")
    if channel and "REAL" in (liar.may("recv", channel[0]) or [""])[0]:
        raise Broken("nobody connects to a port that a rule has forbidden him since")


@attack("a stopped daemon")
def stuck_daemon(t):
    """The daemon is stopped: a client waits for one time-out, and then uses the kernel."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7208, "REAL", preload=False)
    script = ("import socket, time, sys\n"
              "def once():\n    c = socket.create_connection(('127.0.0.1', 7208), 20); return c.recv(10)\n"
              "once(); print('first', flush=True); sys.stdin.readline()\nb = time.monotonic()\n"
              "for _ in range(4):\n    s = socket.create_server(('127.0.0.1', 0)); s.close(); once()\nprint('took', time.monotonic() - b)")
    import subprocess
    victim = Proc(t, t.command(PYTHON, "-c", script), stdin=subprocess.PIPE).wait_for("first")
    t.daemon.popen.send_signal(19)
    try:
        victim.popen.stdin.write(b"\n")
        victim.popen.stdin.close()
        said = victim.end(7)
    finally:
        t.daemon.popen.send_signal(18)
    took = float(victim.lines("took")[0]) if "took" in said else 7
    if took > 4.5:
        raise Late(f"a stuck daemon costs a program {took:.1f} s and more for four listeners and connections: more than one time-out")


@attack("invalid messages")
def malformed_messages(t):
    """All kinds of messages with any bytes after them, from several users: the daemon keeps running and serving."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7209, "REAL")
    script = ("import os, socket, struct, sys, random\nrandom.seed(5)\n"
              "for n in range(3000):\n"
              "    if n % 50 == 0:\n"
              "        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.setblocking(False)\n"
              "    kind = random.randrange(0, 40)\n"
              "    try: s.send(struct.pack('<HHI', kind, random.choice((0, 0, 0, 9)), n) + random.randbytes(random.randrange(0, 60)))\n"
              "    except OSError: pass\n"
              "    try:\n"
              "        while s.recv(20000): pass\n"
              "    except OSError: pass\nprint('done')")
    t.run(script, t.control, user="nobody", preload=False)
    said = t.run(CLIENT, "127.0.0.1", 7209)
    if t.daemon.popen.poll() is not None or "REAL" not in said:
        raise Broken(f"the daemon does not serve any more: {t.daemon.said()[-300:]}")


@attack("replies that are not read")
def answers_are_not_taken(t):
    """Connections that send requests and never read: the daemon does not wait for them."""
    t.start()
    t.py(SERVER, "127.0.0.1", 7210, "REAL")
    script = ("import socket, struct, sys, time\nkeep = []\n"
              "for n in range(100):\n"
              "    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.setblocking(False)\n"
              "    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)\n"
              "    keep.append(s)\n"
              "    try:\n"
              "        while True: s.send(struct.pack('<HHIQ', 18, 0, n, 0))\n"
              "    except OSError: pass\nprint('ready', flush=True); time.sleep(5)")
    # How long it takes on a machine as busy as this one.
    begun = time.monotonic()
    t.run(CLIENT, "127.0.0.1", 7210)
    usual = time.monotonic() - begun
    t.py(script, t.control, user="nobody", preload=False)
    begun = time.monotonic()
    said = t.run(CLIENT, "127.0.0.1", 7210)
    if "REAL" not in said or time.monotonic() - begun > 1.5 + 2 * usual:
        raise Late(f"a connect took {time.monotonic() - begun:.1f} s: {said}")
