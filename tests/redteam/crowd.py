"""What a daemon with very many clients takes, and what hostile users add to that."""

import resource
import threading
import time

from stage import PYTHON, SERVER, Liar, Proc, Refused, Stage

# Connects of an honest client one after another, each to its first bytes: the middle one and the slowest in microseconds.
HONEST = """
import socket, sys, time
took = []
for n in range(int(sys.argv[1])):
    begun = time.monotonic()
    c = socket.create_connection(('127.0.0.1', 7901), 10); c.settimeout(10)
    assert c.recv(100) == b'REAL'
    c.close()
    took.append((time.monotonic() - begun) * 1e6)
    time.sleep(0.002)
took.sort()
print(round(took[len(took) // 2]), round(took[-1]))
"""

# Asks for everybody's sockets by sixty connections that read nothing in time.
LISTS = """
import socket, struct, sys
conns = []
for _ in range(60):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.setblocking(False); conns.append(s)
print('ready', flush=True)
while True:
    for s in conns:
        try: s.send(struct.pack('<HHIQ', 17, 0, 1, 0))
        except OSError: pass
        try: s.recv(16384)
        except OSError: pass
"""

# Any bytes, by connections that come and go.
NONSENSE = """
import os, random, socket, struct, sys
print('ready', flush=True)
while True:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setblocking(False)
    try:
        s.connect(sys.argv[1])
        for n in range(50):
            s.send(struct.pack('<HHI', random.randrange(0, 40), 0, n) + os.urandom(random.randrange(0, 60)))
    except OSError: pass
    s.close()
"""

# A namespace whose addresses come and go.
NAMESPACE = """
import socket, subprocess
subprocess.run('ip link set lo up', shell=True)
s = socket.create_server(('127.0.0.1', 7902)); print('ready', flush=True)
flap = 'address add 192.0.2.1/32 dev lo\\naddress del 192.0.2.1/32 dev lo\\n' * 20000
while True: subprocess.run(['ip', '-batch', '-'], input=flap, text=True)
"""


def figures(t, what, honest, seconds):
    """Prints a line; the middle time of an honest connect in microseconds, the daemon's memory, and its part of a CPU."""
    before, begun = t.wanted(waiting=False), time.monotonic()
    time.sleep(seconds)
    alone = (t.wanted(waiting=False) - before) / (time.monotonic() - begun)
    said = Proc(t, t.command(PYTHON, "-c", HONEST, honest, limit=120)).end(120)
    try:
        middle, slowest = (int(word) for word in said.split()[-2:])
    except ValueError:
        raise RuntimeError(f"{what}: an honest client is not served: {said[-300:]}") from None
    memory = t.memory()
    print(f"{what:58} {memory / 2**20:7.1f} MiB  {alone:6.1%} of a CPU  honest connects {middle:6} us, the slowest {slowest:7} us", flush=True)
    return middle, memory, alone


def run(count, seconds):
    """The figures of a daemon with so many clients; false: honest clients are not served, or it is beyond its bounds."""
    with Stage("crowd") as t:
        t.start()
        # As long as the rest: on a busy machine that is more than what a program has elsewhere.
        t.py(SERVER, "127.0.0.1", 7901, "REAL", limit=600)
        figures(t, "a server", 200, seconds)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        liars = []
        for user in ("nobody", "daemon"):
            command = ["prlimit", f"--nofile={most}:{most}", *t.command(f"{t.dir}/fs-redteam", user=user, preload=False, limit=600)]
            liars.append(Liar(t, command).attach())
        attached = led = 0
        for liar in liars:
            got = liar("crowd", count // 2, "127.0.0.1:7901")
            attached, led = attached + int(got[0]), led + int(got[1])
        _, idle, busy = figures(t, f"and {attached} clients of two users, {led} with memory", 200, seconds)
        with open(f"/proc/{t.daemon.pid}/status") as file:
            threads = [line.split()[1] for line in file if line.startswith("Threads")][0]
        print(f"{idle / max(attached, 1) / 1024:.1f} KiB for each client; {threads} threads")
        hostile = [("lists", LISTS, False), ("nonsense", NONSENSE, False), ("a namespace that changes", NAMESPACE, True)]
        for name, script, userns in hostile:
            t.py(script, *([] if userns else [t.control]), user="nobody", preload=userns, userns=userns, limit=600)

        over = threading.Event()

        def ask(liar):
            while not over.is_set():
                try:
                    liar("status")
                except Refused:
                    return
        askers = [threading.Thread(target=ask, args=(liar,)) for liar in liars]
        for asker in askers:
            asker.start()
        middle, memory, _ = figures(t, "and lists, nonsense, a namespace that changes, questions", 200, seconds)
        over.set()
        for asker in askers:
            asker.join()
        return memory < idle + (64 << 20) and busy < 0.3 and middle < 1_000_000
