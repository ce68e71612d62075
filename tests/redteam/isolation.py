"""Holders of one listener: a worker, or a child that has given up its rights, and the sessions of the others."""

import time

from attacks import attack
from stage import PYTHON, Broken, Late, Liar

SECRET = "THE-SECRET-OF-A-SESSION-" * 4

# A server of root's with a worker, nobody, that holds the listener and nothing else: at number 50, in a program without the library.
MASTER = """
import os, socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[2])))
os.dup2(s.fileno(), 50, inheritable=True)
if os.fork() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    del os.environ['LD_PRELOAD']
    os.execv(sys.argv[1], [sys.argv[1]])
os.close(50)
while True:
    c, _ = s.accept()
    if os.fork() == 0:
        while True:
            data = c.recv(1000)
            if not data: os._exit(0)
            c.sendall(data)
"""

# Sends what it is told, says what comes back, and at the end how it ended.
TALK = """
import socket, sys, time
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
c.settimeout(4)
c.sendall(sys.argv[2].encode())
print('echo', c.recv(1000), flush=True)
try:
    print('then', c.recv(1000), flush=True)
except OSError as e: print('end', e, flush=True)
"""


def worker(t, port, config=None, uid=65534):
    t.start(config=config)
    liar = Liar(t, t.command(PYTHON, "-c", MASTER.replace("65534", str(uid)), f"{t.dir}/fs-redteam", port))
    liar.attach()
    liar("adopt", 50)
    return liar


def sessions(liar):
    """The memory of all arenas that the worker can have."""
    found = []
    for arena in range(1, 12):
        memory = liar.may("arena", arena)
        if memory:
            found.append((arena, memory[0], memory[1]))
    return found


def reads_a_session(t, port, **how):
    """A worker looks for what a client has said to another process."""
    liar = worker(t, port, **how)
    client = t.py(TALK, port, SECRET, wait="echo")
    claimed = liar.may("claim", 2)
    for _, _, memory in sessions(liar) if claimed else ():
        if liar.may("find", memory, SECRET):
            raise Broken("a worker that only holds the listener reads a session that another process has accepted")
    client.stop()


@attack("6: workers of one listener")
def worker_reads_a_session(t):
    reads_a_session(t, 7101)


@attack("6: workers of one listener")
def worker_of_one_user_reads_a_session(t):
    """A worker reads another worker's session. Both are of one user, and the configuration separates them
    (listener_memory)."""
    reads_a_session(t, 7111, config='listener_memory = "process"\n', uid=0)


@attack("6: workers of one listener")
def worker_that_waits_first_reads_a_session(t):
    """A worker has the memory of a client before any worker accepts. A waiting connection may be its own, but no later
    one."""
    t.start()
    liar = Liar(t, t.command(PYTHON, "-c", MASTER.replace("while True:\n    c, _", "sys.stdin = None\nimport time; time.sleep(2)\nwhile True:\n    c, _"),
                             f"{t.dir}/fs-redteam", 7112))
    liar.attach()
    liar("adopt", 50)
    script = TALK.replace("try:", "c.close(); c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); c.settimeout(4); "
                          "c.sendall(sys.argv[2].encode()); c.recv(1000); print('second', flush=True)\ntry:").replace(
                              "c.sendall(sys.argv[2].encode())", "c.sendall(b'first')", 1)
    client = t.py(script, 7112, SECRET, wait=None)
    time.sleep(0.7)
    found = sessions(liar) if liar.may("claim", 2) else []
    client.wait_for("second")
    found += sessions(liar)
    for _, _, memory in found:
        if liar.may("find", memory, SECRET):
            raise Broken("a worker that has only waited reads a session that another process has accepted since")


@attack("6: workers of one listener")
def worker_writes_into_a_session(t):
    liar = worker(t, 7102)
    client = t.py(TALK, 7102, SECRET, wait="echo")
    claimed = liar.may("claim", 2)
    for _, _, memory in sessions(liar) if claimed else ():
        side = liar.may("map", memory, "B")
        for slot in range(2) if side else ():
            channel = liar.may("at", side[0], slot)
            if channel:
                liar.may("send", channel[0], "INJECTED")
    if "INJECTED" in client.end(5):
        raise Broken("a worker that only holds the listener has written to another's client")


@attack("6: workers of one listener")
def worker_ends_a_session(t):
    """A worker's page claims another worker's channel and then ends, so that the daemon would end the session."""
    liar = worker(t, 7103)
    client = t.py(TALK, 7103, SECRET, wait="echo")
    claimed = liar.may("claim", 2)
    for arena, _, _ in sessions(liar) if claimed else ():
        for entry in range(4):
            liar("entry", 8 + entry, f"{arena}/0/B", 1)
    # It ends, and not the server, whose child it is.
    liar.popen.stdin.close()
    time.sleep(0.5)
    said = client.said()
    if "then" in said or "end" in said:
        raise Broken(f"a worker that only holds the listener has ended another's session: {said.splitlines()[-1]}")


@attack("6: data of ended sessions")
def late_worker_reads_the_past(t):
    """A worker starts after a session, when its client has started the next one."""
    liar = worker(t, 7104)
    script = TALK.replace("try:", "c.close(); c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); c.settimeout(4); "
                          "c.sendall(b'x'); c.recv(1); print('second', flush=True)\ntry:")
    t.py(script, 7104, SECRET, wait="second")
    claimed = liar.may("claim", 2)
    for _, _, memory in sessions(liar) if claimed else ():
        if liar.may("find", memory, SECRET):
            raise Broken("a worker reads what a session carried that ended before it held anything")


# A server that forks a child which gives up everything, as sshd's before authentication; the child looks at what it has mapped.
SEPARATED = """
import ctypes, os, socket, sys, time
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
c, _ = s.accept(); c.recv(1)
if os.fork() == 0:
    out = os.dup2(1, 60)
    os.closerange(3, 60); os.closerange(61, 4096)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    time.sleep(1.5)
    rings, found = int(sys.argv[2]), b''
    with open('/proc/self/maps') as maps:
        for line in maps:
            if 'fastsock-arena' not in line: continue
            ends, perms, offset = line.split()[:3]
            begin, end = (int(n, 16) for n in ends.split('-'))
            offset = int(offset, 16)
            for slot in range(4):
                at = rings + slot * (1 << 20) + (1 << 14)
                if 'r' in perms and offset <= at and at + 4096 <= offset + end - begin:
                    found += ctypes.string_at(begin + at - offset, 4096)
    os.write(60, b'child read %s\\n' % (b'SECRET' if sys.argv[3].encode() in found else b'nothing'))
    os._exit(0)
d, _ = s.accept()
d.recv(1000)
time.sleep(5)
"""


@attack("6: a child without its parent's rights")
def privilege_separated_child_reads(t):
    """A child has closed every descriptor and changed its user, and the configuration separates it from its parent
    (listener_memory). A later session must not be in memory that it had from its start."""
    t.start(config='listener_memory = "process"\n')
    liar = t.liar().attach()
    server = t.py(SEPARATED, 7105, liar("place", "rings")[0], SECRET)
    t.py("import socket, sys, time\nc = socket.create_connection(('127.0.0.1', 7105)); c.sendall(b'1'); time.sleep(0.7)\n"
         "d = socket.create_connection(('127.0.0.1', 7105)); d.sendall(sys.argv[1].encode()); time.sleep(5)", SECRET, wait=None)
    server.wait_for("child read", 8)
    if "child read SECRET" in server.said():
        raise Broken("a child that has closed all descriptors reads the sessions that its parent accepts afterwards")


@attack("a peer writes anything into shared memory")
def scribbling_client(t):
    """A client of the attacker's writes anything anywhere into the memory that it shares with a server. Another client
    is still served."""
    t.start()
    server = t.py("""
import selectors, socket
s = socket.create_server(('127.0.0.1', 7106)); s.setblocking(False)
e = selectors.DefaultSelector(); e.register(s, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in e.select():
        try:
            if key.fileobj is s:
                c, _ = s.accept(); c.setblocking(False); e.register(c, selectors.EVENT_READ)
            else:
                data = key.fileobj.recv(1000)
                if data: key.fileobj.send(data)
                else: e.unregister(key.fileobj); key.fileobj.close()
        except BlockingIOError: pass
        except OSError:
            if key.fileobj is not s: e.unregister(key.fileobj); key.fileobj.close()
""")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    memory = liar("route", fd, "127.0.0.1:7106")[1].split(":")[1]
    side = liar("map", memory, "A")[0]
    for n in range(20):
        channel = liar.may("open", side, "127.0.0.1:0", "127.0.0.1:7106")
        if channel:
            liar.may("send", channel[0], "x" * 50)
        liar.may("scribble", memory, 7 + n, 3000)
    begun = time.monotonic()
    said = t.run("import socket\nc = socket.create_connection(('127.0.0.1', 7106), 5); c.sendall(b'hello'); print(c.recv(100))")
    if server.popen.poll() is not None:
        raise Broken(f"a server has ended: {server.said()[-200:]!r}")
    if "hello" not in said or time.monotonic() - begun > 2:
        raise Late(f"a server was kept from its other clients for {time.monotonic() - begun:.1f} s: {said!r} {server.said()[-200:]!r}")


def hold_locks(liar, arena, memory, slot, *locks):
    """Those of all sides whose locks the liar can have; and the mark that somebody sends, which both sides map."""
    places = [liar.may("locks", memory, "A")]
    peers = liar.may("arena", arena, "B")
    places.append(peers and liar.may("locks", peers[1], "B"))
    for place in filter(None, places):
        for lock in locks:
            liar("poke", place[0], f"locks.{lock},{slot},0", 1 << 32 | 1)
    liar("poke", memory, f"tx.writer,{slot},1", 1 << 32 | 1)


def locked(t, port, lock):
    """A client that holds locks of its server's for ever; how long another client waits."""
    t.start()
    t.py(f"""
import selectors, socket
s = socket.create_server(('127.0.0.1', {port})); s.setblocking(False)
e = selectors.DefaultSelector(); e.register(s, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in e.select():
        try:
            if key.fileobj is s:
                c, _ = s.accept(); c.setblocking(False); e.register(c, selectors.EVENT_READ)
            else:
                data = key.fileobj.recv(1000)
                if data: key.fileobj.send(data)
                else: e.unregister(key.fileobj); key.fileobj.close()
        except BlockingIOError: pass
        except OSError:
            if key.fileobj is not s: e.unregister(key.fileobj); key.fileobj.close()
""")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    arena, memory = liar("route", fd, f"127.0.0.1:{port}")[1].split(":")
    channel, slot = liar("open", liar("map", memory, "A", "own")[0], "127.0.0.1:0", f"127.0.0.1:{port}")
    liar("send", channel, "1")
    liar("recv", channel)
    hold_locks(liar, arena, memory, slot, lock)
    liar("send", channel, "2")
    time.sleep(0.2)
    begun = time.monotonic()
    said = t.run(f"import socket\nc = socket.create_connection(('127.0.0.1', {port}), 5); c.settimeout(3); c.sendall(b'hello')\n"
                 "print(c.recv(100))")
    waited = time.monotonic() - begun
    if "hello" not in said or waited > 1.5:
        raise Late(f"a server that never blocks was kept for {waited:.1f} s by a lock in a client's memory ({said!r})")


@attack("a peer holds locks")
def lock_of_the_receiver_is_held(t):
    locked(t, 7107, "receive")


@attack("a peer holds locks")
def lock_of_the_sender_is_held(t):
    locked(t, 7108, "send")


# Answers each byte that it is told.
ANSWERS = """
import socket, struct, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('ready', flush=True)
c, _ = s.accept()
if len(sys.argv) > 2: c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', int(sys.argv[2]), 0))
try:
    while c.send(c.recv(1)): pass
except BlockingIOError: print('EAGAIN', flush=True)
"""

# Reads until there is nothing, as who is told of edges does.
DRAINS = """
import selectors, socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); s.setblocking(False)
e = selectors.DefaultSelector(); e.register(s, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in e.select():
        try:
            if key.fileobj is s:
                c, _ = s.accept(); c.setblocking(False); e.register(c, selectors.EVENT_READ)
            else:
                while data := key.fileobj.recv(1): key.fileobj.send(data)
                e.unregister(key.fileobj); key.fileobj.close()
        except BlockingIOError: pass
"""


def with_words(t, port, value):
    """A connection to the server there, over which has gone a byte and its answer; then all words beside references, SO_ERROR, flags and
    buffers of the server's side, in memory that its client maps, become `value`, and another byte and its answer go."""
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    _, memory = liar("route", fd, f"127.0.0.1:{port}")[1].split(":")
    channel, slot = liar("open", liar("map", memory, "A", "own")[0], "127.0.0.1:0", f"127.0.0.1:{port}")
    for byte in "12":
        liar("send", channel, byte)
        liar("recv", channel)
        if byte == "1":
            line = int(liar("place", f"own,{slot},1")[0])
            for word in (1, 4, *range(7, 16)):
                liar("poke4", memory, line + 4 * word, value)
    return liar, channel


@attack("a peer changes how calls wait")
def call_that_waits_is_made_not_to(t):
    """A server's connection is blocking (no O_NONBLOCK), and its client writes that it is not."""
    t.start()
    server = t.py(ANSWERS, 7120)
    liar, channel = with_words(t, 7120, 0o4000)
    time.sleep(0.3)
    said = liar.may("send", channel, "3") and liar.may("recv", channel)
    if "EAGAIN" in server.said() or not said:
        raise Broken(f"a server's recv(2) that waits has answered EAGAIN at its client's word ({server.said()[-200:]!r})")


@attack("a peer changes how calls wait")
def call_that_never_waits_is_made_to(t):
    """A server's connection is O_NONBLOCK, and its client writes that it is not. The server would block, with all its
    other clients."""
    t.start()
    t.py(DRAINS, 7121)
    with_words(t, 7121, 0)
    said = t.run("import socket\nc = socket.create_connection(('127.0.0.1', 7121), 15); c.settimeout(15); c.sendall(b'hello')\n"
                 "print(c.recv(100))")
    if "b'h" not in said:
        raise Broken(f"a server that never waits sleeps in recv(2) of a client that says so: another one hears {said!r}")


@attack("a peer changes how calls wait")
def time_out_of_a_call_is_taken_away(t):
    """A server's connection has SO_RCVTIMEO of a second, and its client writes that it has none."""
    t.start()
    server = t.py(ANSWERS, 7122, 1)
    # Kept: its end would be the connection's.
    _client = with_words(t, 7122, 0)
    try:
        server.wait_for("EAGAIN", 15)
    except RuntimeError:
        raise Broken("a recv(2) with SO_RCVTIMEO waits for ever at its client's word") from None


@attack("a peer claims that memory is unused")
def memory_in_use_is_said_to_be_over(t):
    """A client writes that its arena takes no more connections and has none in use. Its server would unmap the memory
    during its own calls."""
    t.start()
    server = t.py("""
import selectors, socket
s = socket.create_server(('127.0.0.1', 7123), backlog=64)
e = selectors.DefaultSelector(); e.register(s, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in e.select():
        if key.fileobj is s:
            c, _ = s.accept(); e.register(c, selectors.EVENT_READ)
            continue
        try:
            data = key.fileobj.recv(100)
            if data: key.fileobj.send(data); continue
        except OSError as error: print('error', error.errno, flush=True)
        e.unregister(key.fileobj); key.fileobj.close()
""")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    _, memory = liar("route", fd, "127.0.0.1:7123")[1].split(":")
    channel, _ = liar("open", liar("map", memory, "A", "own")[0], "127.0.0.1:0", "127.0.0.1:7123")
    liar("send", channel, "1")
    liar("recv", channel)
    for field in "slots", "head.closed":
        liar("poke", memory, field, 0 if field == "slots" else 1)
    # Each child is a client process of its own: the server looks for memory that is over with each 32nd.
    said = t.run("""
import os, socket
for _ in range(200):
    child = os.fork()
    if child == 0:
        try:
            c = socket.create_connection(('127.0.0.1', 7123), 15); c.sendall(b'x'); os._exit(c.recv(1) != b'x')
        finally: os._exit(1)
    if os.waitpid(child, 0)[1]: print('failed', flush=True)
""")
    answer = liar.may("send", channel, "2") and liar.may("recv", channel)
    if "error" in server.said() or not answer or "failed" in said:
        raise Broken(f"memory of a connection went in the middle of it, as its client had said ({server.said()[-200:]!r} {said!r})")


@attack("a peer fills the queue")
def queue_without_end(t):
    """A client fills its server's queue with refused connections as fast as the server reads it. A non-blocking
    accept(2) would never return."""
    t.start()
    t.py("""
import selectors, socket
s = socket.create_server(('127.0.0.1', 7124)); s.setblocking(False)
e = selectors.DefaultSelector(); e.register(s, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in e.select():
        try:
            if key.fileobj is s:
                while True: c, _ = s.accept(); c.setblocking(False); e.register(c, selectors.EVENT_READ)
            else:
                data = key.fileobj.recv(1000)
                if data: key.fileobj.send(data)
                else: e.unregister(key.fileobj); key.fileobj.close()
        except BlockingIOError: pass
        except OSError:
            if key.fileobj is not s: e.unregister(key.fileobj); key.fileobj.close()
""")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    _, memory = liar("route", fd, "127.0.0.1:7124")[1].split(":")
    liar("poke4", memory, "head.limit", 0)
    # From where its sockets are not: none of them is accepted.
    liar("flood", liar("map", memory, "A", "own")[0], "10.9.8.7:40000", "127.0.0.1:7124")
    time.sleep(0.3)
    for n in range(3):
        said = t.run("import socket\nc = socket.create_connection(('127.0.0.1', 7124), 15); c.settimeout(15); c.sendall(b'hello')\n"
                     "print(c.recv(100))")
        if "hello" not in said:
            raise Broken(f"a server that never waits is kept in accept(2) by a client's queue: another one hears {said!r}")


@attack("a peer fills the queue")
def backlog_is_the_listeners(t):
    """The limit of connections that wait for accept is in memory that the client can write. It affects only its own
    connections: the server takes them out one after another, as those of a client that keeps connecting, and its
    queue is no longer than the limit."""
    t.start()
    t.py("import socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 7109)); s.listen(1); print('ready', flush=True); time.sleep(20)")
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    memory = liar("route", fd, "127.0.0.1:7109")[1].split(":")[1]
    side = liar("map", memory, "A")[0]
    liar("poke4", memory, "head.limit", 0)
    open_ones = 0
    for n in range(200):
        channel = liar.may("open", side, "127.0.0.1:0", "127.0.0.1:7109")
        state = liar("state", channel[0]) if channel else []
        if state:
            liar("poke4", memory, "head.limit", 0)
            open_ones += 1
    rows = [line for line in t.fastsock("ss").stdout.splitlines() if "LISTEN" in line]
    waiting = max((int(word) for row in rows for word in row.split() if word.isdigit() and int(word) in range(100, 201)), default=0)
    if waiting:
        raise Broken(f"a listener with a backlog of 1 has {waiting} connections that wait, of one client")


@attack("a peer fills the queue")
def backlog_is_for_each_process(t):
    """Many processes connect to a listener with a backlog of 8 that accepts nothing. Together they get the nine places
    that the kernel has, and one extra place per process."""
    t.start()
    t.py("import socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 7125)); s.listen(8); print('ready', flush=True); time.sleep(25)")
    said = t.run("""
import os, socket, time
held, children = [], []
for _ in range(12):
    r, w = os.pipe()
    if os.fork() == 0:
        made = 0
        for _ in range(8):
            c = socket.socket(); c.settimeout(0.25); held.append(c)
            try: c.connect(('127.0.0.1', 7125)); made += 1
            except OSError: pass
        os.write(w, b'%d' % made); time.sleep(25); os._exit(0)
    os.close(w); children.append(r)
print(sum(int(os.read(r, 9)) for r in children), flush=True)
os.killpg(os.getpgid(0), 9)
""")
    made = int(said.split()[0])
    if made > 9 + 12:
        raise Broken(f"a listener with a backlog of 8 has {made} connections that wait, of 12 processes")


@attack("read-only memory")
def pages_for_reading(t):
    """The directory and a listener's page: no system call makes them writable."""
    t.start()
    liar = t.liar().attach()
    fd = liar("socket", "v4")[0]
    liar("bind", fd, "127.0.0.1:7110")
    liar("klisten", fd, 1)
    page = liar("listen", fd)[1]
    for name, handle in (("directory", liar.directory), ("listener's page", page)):
        way = liar.may("writable", handle)
        if way:
            raise Broken(f"the {name} can be written by {' '.join(way)}")
