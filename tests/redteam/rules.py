"""Random sets of nftables' rules: what the kernel's own connections meet is what ours meet.

Each world begins without rules: connections of two users to some places are open, on the kernel's sockets and on ours. Then rules come,
by chance, and the kernel judges:

1. Where it stops its open connection, ours of the same user to the same place is stopped too.
2. A new connection is made, refused, and led to the same server, by both.

That ours stops where the kernel's goes on is allowed (a wrong no); it is counted. A world that fails is played once more, with all the time
that a busy machine could want, before it is said with its seed.
"""

import json
import random
import select
import subprocess
import time

from stage import PYTHON, Stage

# Says its place to whoever sends a byte.
SERVER = r"""
import selectors, socket, sys
e = selectors.DefaultSelector()
for number, at in enumerate(sys.argv[1:]):
    host, port = at.rsplit(',', 1)
    s = socket.create_server((host, int(port)), family=socket.AF_INET6 if ':' in host else socket.AF_INET, backlog=64)
    s.setblocking(False)
    e.register(s, selectors.EVENT_READ, (None, number))
print('ready', flush=True)
while True:
    for key, _ in e.select():
        of, number = key.data
        try:
            if of is None:
                c, _ = key.fileobj.accept(); c.setblocking(False)
                e.register(c, selectors.EVENT_READ, ('connection', number))
            else:
                data = key.fileobj.recv(100)
                if not data: raise ConnectionError
                key.fileobj.sendall(b'%d' % number * len(data))
        except BlockingIOError: pass
        except OSError:
            if of: e.unregister(key.fileobj); key.fileobj.close()
"""

# Keeps connections; a line of JSON each way.
CLIENT = r"""
import errno, json, select, socket, struct, sys, time
held = {}
def name(e): return errno.errorcode.get(e.errno, type(e).__name__)
def turns(which, seconds):
    said, until = {}, time.monotonic() + seconds
    for id in which:
        # What comes of a turn before this one is not its answer.
        try:
            while held[id].recv(100): pass
        except BlockingIOError: pass
        except OSError as e: said[id] = name(e)
        if id not in said:
            try: held[id].send(b'x')
            except OSError as e: said[id] = name(e)
    while len(said) < len(which) and (left := until - time.monotonic()) > 0:
        for s in select.select([held[id] for id in which if id not in said], [], [], left)[0]:
            id = next(id for id in which if held[id] is s)
            try: said[id] = s.recv(100)[:1].decode() or 'END'
            except OSError as e: said[id] = name(e)
    return {id: said.get(id, 'SILENT') for id in which}
def opens(which, seconds):
    said, begun, until = {}, [], time.monotonic() + seconds
    for id, to in which.items():
        s = socket.socket(socket.AF_INET6 if ':' in to[0] else socket.AF_INET)
        s.setblocking(False)
        s.setsockopt(1, 13, struct.pack('ii', 1, 0))
        held[id] = s
        try: s.connect(tuple(to))
        except BlockingIOError: pass
        except OSError as e: said[id] = name(e)
        if id not in said: begun.append(id)
    while begun and (left := until - time.monotonic()) > 0:
        for s in select.select([], [held[id] for id in begun], [], left)[1]:
            id = next(id for id in begun if held[id] is s)
            error = s.getsockopt(1, 4)
            if error: said[id] = errno.errorcode[error]
            begun.remove(id)
    for id in begun: said[id] = 'SILENT'
    return said | turns([id for id in which if id not in said], seconds)
print('ready', flush=True)
for line in sys.stdin:
    o = json.loads(line)
    if o['do'] == 'end':
        for s in held.values(): s.close()
        held.clear(); said = {}
    else:
        said = (opens if o['do'] == 'open' else turns)(o['which'], o['seconds'])
    print(json.dumps(said), flush=True)
"""

USERS = (None, "nobody")
# Servers: some ports at each address. 40 is where translation leads, and what no client of ours asks for.
PLACES = [("127.0.0.1", 7000), ("127.0.0.1", 7001), ("127.0.0.1", 7040), ("10.8.0.1", 7000), ("10.8.0.1", 7002), ("::1", 7000),
          ("fd08::1", 7001)]
MADE = set("0123456789")


def rule_set(seed):
    """The lines of nft(8), the last of which may be refused: it depends on the family and the hook what a rule may be."""
    chance = random.Random(seed)
    pick = chance.choice
    family = pick(("ip", "ip", "ip6", "inet", "inet", "inet", "netdev"))
    ports = lambda: pick(("7000", "7001", "7002", "7000-7001", "{ 7000, 7002 }", "{ 7001-7002 }", "@ports", "!= 7000", "9999", "> 7000"))
    v4 = lambda: pick(("127.0.0.1", "10.8.0.1", "127.0.0.0/8", "10.8.0.0/24", "{ 127.0.0.1, 10.1.1.1 }", "@hosts", "!= 127.0.0.1", "10.9.9.9"))
    v6 = lambda: pick(("::1", "fd08::1", "fd08::/64", "!= ::1"))

    def match():
        return pick((
            lambda: f"tcp dport {ports()}", lambda: f"tcp dport {ports()}", lambda: f"tcp dport {ports()}",
            lambda: f"tcp sport {ports()}", lambda: f"th dport {pick(('7000', '7001', '9999'))}",
            lambda: f"ip daddr {v4()}", lambda: f"ip saddr {v4()}", lambda: f"ip6 daddr {v6()}", lambda: f"ip6 saddr {v6()}",
            lambda: f"meta skuid {pick(('nobody', 'root', '!= 0', '1-65535'))}", lambda: f"iifname {pick(('lo', 'd0', '!= lo'))}",
            lambda: f"oifname {pick(('lo', 'd0', '!= lo'))}", lambda: f"iif {pick(('lo', 'd0'))}", lambda: f"oif {pick(('lo', 'd0'))}",
            lambda: f"ct state {pick(('new', 'established', 'established,related', 'invalid', '!= new'))}",
            lambda: f"ct direction {pick(('original', 'reply'))}", lambda: f"meta mark {pick(('0', '7', '!= 0'))}",
            lambda: f"meta l4proto {pick(('tcp', 'udp', '!= tcp', '{ tcp, udp }'))}", lambda: f"ip protocol {pick(('tcp', 'udp'))}",
            lambda: f"meta nfproto {pick(('ipv4', 'ipv6'))}", lambda: f"tcp flags {pick(('syn', '& (syn|ack) == syn', 'fin'))}",
            lambda: f"fib daddr type {pick(('local', 'unicast'))}", lambda: "ip ttl 64", lambda: "meta length > 1400",
            lambda: "ip daddr . tcp dport { 127.0.0.1 . 7000, 10.8.0.1 . 7002 }", lambda: "meta pkttype unicast",
            lambda: "socket transparent 1", lambda: "@th,16,16 7001",
        ))()

    def verdict(depth):
        stops = ("drop", "drop", "reject", "reject with tcp reset")
        goes = ("accept", "accept", "counter", "counter accept", "return", "continue", "meta mark set 7", "ct mark set 1")
        moves = ("redirect to :7040", "dnat to 127.0.0.1:7040", "dnat ip to 10.8.0.1:7002", "masquerade", "snat to 10.8.0.1", "notrack")
        maps = ("tcp dport vmap { 7000 : drop, 7001 : accept }", "tcp dport vmap @verdicts", "meta skuid vmap { 65534 : drop, 0 : accept }",
                "iifname vmap { lo : accept, d0 : drop }", "ip daddr vmap { 10.8.0.0/24 : drop }")
        deep = (f"jump c{depth + 1}", f"goto c{depth + 1}") if depth < 2 else ()
        return pick(stops + stops + goes + maps + deep + deep + (moves if chance.random() < 0.4 else ()))

    lines = [f"add table {family} t", f"add set {family} t ports {{ type inet_service; flags interval; elements = {{ {pick(('7000', '7001-7002', '9999'))} }}; }}"]
    if family in ("ip", "inet"):
        lines.append(f"add set {family} t hosts {{ type ipv4_addr; flags interval; elements = {{ {pick(('127.0.0.0/8', '10.8.0.1', '10.9.9.9'))} }}; }}")
    lines.append(f"add map {family} t verdicts {{ type inet_service : verdict; elements = {{ 7001 : {pick(('drop', 'accept'))}, 7002 : drop }}; }}")
    for depth in (1, 2):
        lines.append(f"add chain {family} t c{depth}")
    bases = []
    for number in range(chance.randint(1, 3)):
        policy = pick(("accept",) * 9 + ("drop",))
        if family == "netdev":
            hook = f"type filter hook ingress device {pick(('lo', 'd0'))} priority {number}"
        else:
            kind = pick(("filter",) * 6 + ("nat", "route"))
            hooks = {"filter": ("prerouting", "input", "input", "output", "output", "postrouting", "forward"),
                     "nat": ("prerouting", "input", "output", "postrouting"), "route": ("output",)}[kind]
            hook = f"type {kind} hook {pick(hooks)} priority {pick((-300, -150, -100, 0, 0, 10, 100)) + number}"
        bases.append(f"b{number}")
        lines.append(f"add chain {family} t b{number} {{ {hook}; policy {policy}; }}")
    for chain, most, depth in [(base, 4, 0) for base in bases] + [("c2", 2, 2), ("c1", 3, 1)]:
        for _ in range(chance.randint(0 if depth else 1, most)):
            lines.append(f"add rule {family} t {chain} " + " ".join([match() for _ in range(chance.randint(0, 3))] + [verdict(depth)]))
    return lines


class Client:
    def __init__(self, stage, user, preload):
        command = stage.command(PYTHON, "-c", CLIENT, preload=preload, limit=36000, user=user)
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        stage.procs.append(self)
        if self.popen.stdout.readline() != "ready\n":
            raise RuntimeError(f"no client {user}")

    def ask(self, do, which=(), seconds=0.0):
        self.popen.stdin.write(json.dumps({"do": do, "which": which, "seconds": seconds}) + "\n")
        self.popen.stdin.flush()

    def answer(self):
        return json.loads(self.popen.stdout.readline())

    def stop(self):
        self.popen.kill()
        self.popen.wait()


class Theatre:
    def __init__(self, stage):
        self.stage = stage
        for words in (("link", "add", "d0", "type", "veth", "peer", "name", "d1"), ("link", "set", "d1", "up"), ("link", "set", "d0", "up"),
                      ("address", "add", "10.8.0.1/24", "dev", "d0"), ("address", "add", "fd08::1/64", "dev", "d0", "nodad")):
            stage.ip(*words)
        stage.start()
        stage.py(SERVER, *(f"{host},{port}" for host, port in PLACES), limit=36000)
        self.clients = {(user, fast): Client(stage, user, fast) for user in USERS for fast in (False, True)}
        self.played = self.stopped = self.spared = self.early = self.made = self.refused = 0

    def all(self, do, which, seconds, kinds=(False, True)):
        """What all users are told, of each kind, all at once."""
        asked = [key for key in self.clients if key[1] in kinds]
        for user, fast in asked:
            self.clients[user, fast].ask(do, which, seconds)
        said = {kind: {} for kind in kinds}
        for user, fast in asked:
            said[fast].update({(user or "root", id): answer for id, answer in self.clients[user, fast].answer().items()})
        return said

    def load(self, lines):
        """The rules that the kernel takes, at one go."""
        while lines:
            done = subprocess.run(["nsenter", f"--net=/run/netns/{self.stage.home}", "nft", "-f", "-"], input="\n".join(lines) + "\n",
                                  capture_output=True, text=True, timeout=30)
            if done.returncode == 0:
                return lines
            # `/dev/stdin:LINE:COLUMN-COLUMN: Error: …`, or the whole is refused by the kernel without a line.
            bad = {int(part.split(":")[1]) - 1 for part in done.stderr.splitlines() if part.count(":") > 2 and "Error" in part}
            lines = [line for number, line in enumerate(lines) if number not in bad] if bad else lines[:-1]
        return lines

    def play(self, seed, patience):
        """What is wrong with a world; nothing where nothing is."""
        which = {str(number): place for number, place in enumerate(PLACES) if place[1] != 7040}
        wrong = []
        try:
            before = self.all("open", which, 10.0)
            for fast in (False, True):
                failed = {key: said for key, said in before[fast].items() if said not in MADE}
                if failed:
                    raise RuntimeError(f"without rules {'ours' if fast else 'the kernel'} fails: {failed}")
            lines = self.load(rule_set(seed))
            # Connections that are open.
            turns = self.all("turn", list(which), patience)
            over = {key for key, said in turns[False].items() if said not in MADE}
            on = {key for key, said in turns[True].items() if said in MADE}
            until = time.monotonic() + 5 * patience
            while over & on and time.monotonic() < until:
                # Once more by both: what the kernel was slow with is not over.
                again = self.all("turn", list(which), patience)
                over = {key for key in over if again[False][key] not in MADE}
                on = {key for key in on if again[True][key] in MADE}
            wrong += [f"open, and goes on where the kernel's is stopped ({turns[False][key]}): {key}" for key in sorted(over & on)]
            self.stopped += len(over)
            self.spared += len(on)
            self.early += len(turns[True].keys() - on - over)
            self.all("end", (), 0.0)
            # New ones.
            new = self.all("open", which, patience)
            for key, kernels in new[False].items():
                ours = new[True][key]
                if (kernels in MADE or ours in MADE) and kernels != ours:
                    wrong.append(f"new, and is {ours} where the kernel's is {kernels}: {key}")
            self.made += sum(said in MADE for said in new[False].values())
            self.refused += sum(said not in MADE for said in new[False].values())
        finally:
            self.stage.sh("nft", "flush", "ruleset")
            self.all("end", (), 0.0)
        self.played += 1
        return [f"rules of seed {seed}:"] + ["  " + line for line in lines + wrong] if wrong else []


def run(seed, count, seconds):
    """Plays sets of rules; answers how many were played, how many were wrong, and how many connections were ours."""
    begun, wrong = time.monotonic(), 0
    with Stage("rules") as stage:
        theatre = Theatre(stage)
        for number in range(seed, seed + count):
            if time.monotonic() - begun > seconds:
                break
            said = theatre.play(number, 0.3) and theatre.play(number, 3.0)
            if said:
                wrong += 1
                print("\n".join(said), flush=True)
        fast = stage.counter("local_connections")
        print(f"{theatre.played} sets of rules from seed {seed} in {time.monotonic() - begun:.0f} s: {wrong} wrong; the kernel stopped "
              f"{theatre.stopped} open connections, {theatre.early} of ours ended that it let go on, {theatre.spared} went on; it made "
              f"{theatre.made} new ones and refused {theatre.refused}; {fast} connections by memory", flush=True)
        return theatre.played, wrong, fast


# Connects, closes, and says how long a connect took: the first of its process, and the median of the others, in µs.
TIMER = r"""
import socket, struct, sys, time
times = []
for _ in range(int(sys.argv[3])):
    s = socket.socket()
    s.setsockopt(1, 13, struct.pack('ii', 1, 0))
    begun = time.perf_counter()
    s.connect((sys.argv[1], int(sys.argv[2])))
    times.append(time.perf_counter() - begun)
    s.close()
print('took', times[0] * 1e6, sorted(times[1:])[len(times) // 2] * 1e6, flush=True)
"""
ACCEPTOR = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=512)
print('ready', flush=True)
while True:
    try: s.accept()[0].close()
    except OSError: pass
"""


def price(processes=15, connects=300):
    """What a connect costs with rules: medians over processes, on the kernel's sockets and on ours, one after the other."""
    print("| rules | kernel: first of a process, µs | each further | ours: first of a process, µs | each further | by memory |")
    print("|---|---|---|---|---|---|")
    with Stage("price") as stage:
        stage.start()
        stage.py(ACCEPTOR, "127.0.0.1", 7000, limit=600)
        for count in (0, 100, 10_000):
            if count:
                lines = ["add table inet t", "add chain inet t c { type filter hook output priority 0; }"]
                lines += [f"add rule inet t c ip daddr 10.{n // 250}.{n % 250}.1 tcp dport 9 drop" for n in range(count)]
                subprocess.run(["nsenter", f"--net=/run/netns/{stage.home}", "nft", "-f", "-"], input="\n".join(lines), text=True, check=True)
            before = stage.counter("local_connections")
            took = {False: [], True: []}
            for _ in range(processes):
                for fast in took:
                    said = stage.run(TIMER, "127.0.0.1", 7000, connects, preload=fast)
                    took[fast].append([float(word) for word in said.split("took ")[1].split()])
            middle = {fast: [sorted(column)[len(column) // 2] for column in zip(*rows)] for fast, rows in took.items()}
            fast = stage.counter("local_connections") - before
            print(f"| {count:,} | {middle[False][0]:.0f} | {middle[False][1]:.1f} | {middle[True][0]:.0f} | {middle[True][1]:.1f} | "
                  f"{fast * 100 // (processes * connects)} % |", flush=True)
            if count:
                stage.sh("nft", "flush", "ruleset")
