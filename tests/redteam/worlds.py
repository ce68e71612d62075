"""Random worlds, on the kernel and under fastsock: the same verdict, the same peer, the same addresses.

A world is some listeners and some connections of several users, at addresses, devices and options by chance, with rules of routing and
of netfilter; it is played twice on one network namespace, by programs without the library and by programs with it (some of which go
without it all the same). A world whose two plays differ is printed with its seed, which is all that it takes to play it again.
"""

import concurrent.futures
import json
import random
import subprocess
import time

from stage import PYTHON, Stage

# Plays one call after the other: a line of JSON each way.
ACTOR = r"""
import errno, json, socket, struct, sys, time
held, listeners = {}, {}
def make(o):
    s = socket.socket(socket.AF_INET6 if o['six'] else socket.AF_INET)
    s.settimeout(o['patience'])
    if o.get('v6only') is not None and o['six']: s.setsockopt(41, 26, o['v6only'])
    if o.get('reuse'): s.setsockopt(1, 2, 1)
    if o.get('reuseport'): s.setsockopt(1, 15, 1)
    if o.get('device'): s.setsockopt(1, 25, o['device'].encode())
    if o.get('mark'): s.setsockopt(1, 36, o['mark'])
    if o.get('bind'): s.bind(tuple(o['bind']))
    return s
def name(e):
    # Whether nobody answers for an address is known at once or not, as it was asked for before.
    known = errno.errorcode.get(e.errno, str(e))
    return 'UNANSWERED' if isinstance(e, TimeoutError) or known in ('EHOSTUNREACH', 'ETIMEDOUT') else known
def answer(o):
    what = o['do']
    try:
        if what == 'listen':
            s = make(o); s.listen(8); s.setblocking(False); listeners[o['id']] = s
        elif what == 'connect':
            s = make(o); held[o['id']] = s; s.connect(tuple(o['to']))
            s.setsockopt(1, 13, struct.pack('ii', 1, 0))
            return {'local': s.getsockname()[:2], 'peer': s.getpeername()[:2]}
        elif what == 'accept':
            found = []
            for id, s in listeners.items():
                while True:
                    try: c, a = s.accept()
                    except (BlockingIOError, OSError): break
                    c.setblocking(True); c.settimeout(o['patience'])
                    c.setsockopt(1, 13, struct.pack('ii', 1, 0))
                    held['a%s/%d' % (id, c.fileno())] = c
                    c.sendall(b'%d.' % id)
                    found.append([id, list(a[:2]), list(c.getsockname()[:2]), list(c.getpeername()[:2])])
            return {'found': found}
        elif what == 'read':
            return {'read': held[o['id']].recv(16).decode()}
        elif what == 'write':
            held[o['id']].sendall(b'hello')
        elif what == 'hear':
            said = []
            for id, c in held.items():
                if str(id).startswith('a'):
                    try: said.append(c.recv(16).decode())
                    except OSError as e: said.append(name(e))
            return {'heard': said}
        elif what == 'shut': listeners[o['id']].shutdown(socket.SHUT_RDWR)
        elif what == 'close': listeners.pop(o['id']).close()
        elif what == 'again': listeners[o['id']].listen(8)
        elif what == 'end':
            for s in list(held.values()) + list(listeners.values()):
                try: s.close()
                except OSError: pass
            held.clear(); listeners.clear()
        return {}
    except OSError as e:
        if what == 'connect': held.pop(o['id'], None)
        return {'error': name(e)}
print('ready', flush=True)
for line in sys.stdin: print(json.dumps(answer(json.loads(line))), flush=True)
"""

USERS = ("root", "nobody", "games", "space")
DEVICES = (None, None, None, None, None, "lo", "d0")
V4 = ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2", "10.8.0.1", "10.8.0.1", "10.7.0.1")
V6 = ("::1", "fd08::1", "::ffff:127.0.0.1", "::ffff:10.8.0.1")


class Actor:
    def __init__(self, stage, user, preload):
        how = {"user": None if user == "root" else "nobody" if user == "space" else user, "userns": user == "space"}
        script = ACTOR
        if user == "space":
            script = "import os; os.system('ip link set lo up; ip address add 10.7.0.1/32 dev lo; ip address add 10.8.0.1/32 dev lo')\n" + script
        command = stage.command(PYTHON, "-c", script, preload=preload, limit=36000, **how)
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        stage.procs.append(self)
        if self.popen.stdout.readline() != "ready\n":
            raise RuntimeError(f"no actor {user}")

    def __call__(self, **call):
        self.popen.stdin.write(json.dumps(call) + "\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline()
        if not answer:
            raise RuntimeError(f"the actor has ended at {call}")
        return json.loads(answer)

    def stop(self):
        self.popen.kill()
        self.popen.wait()


def world(seed, features):
    """What a world is made of; ports are 0 and 1."""
    chance = random.Random(seed)
    pick = chance.choice
    listeners, connects, rules = [], [], []
    for _ in range(chance.randint(1, 4)):
        six = chance.random() < 0.3
        at = pick(("::",) * 3 + V6) if six else pick(("0.0.0.0",) * 3 + V4)
        listeners.append({
            "user": pick(USERS + ("root", "nobody")), "six": six, "at": at, "port": pick((0, 0, 0, 1)),
            "v6only": pick((None, 0, 1)), "reuse": chance.random() < 0.4, "reuseport": chance.random() < 0.4,
            "device": pick(DEVICES), "fast": chance.random() < 0.8,
            "then": pick((None,) * 9 + ("close", "shut", "again"))})
    for _ in range(chance.randint(1, 4)):
        six = chance.random() < 0.25
        bind = None
        if chance.random() < 0.2:
            bind = pick(V6) if six else pick(V4)
        to = pick(V6 + ("::",)) if six else pick(V4 + ("0.0.0.0",))
        if chance.random() < 0.03 and not six:
            to = "10.8.0.2"
        # Half of them go where somebody listens, as far as the listener's own address says.
        near = [one for one in listeners if one["six"] == six and one["user"] != "space"]
        if near and chance.random() < 0.5:
            at = pick(near)["at"]
            to = {"0.0.0.0": pick(V4), "::": pick(V6)}.get(at, at)
        connects.append({
            "user": pick(USERS + ("root", "nobody", "nobody")), "six": six, "to": to,
            "port": pick((0, 0, 0, 0, 1)), "bind": bind, "device": pick(DEVICES), "mark": pick((0,) * 7 + (7,)),
            "fast": chance.random() < 0.85})
    if "routing" in features and chance.random() < 0.3:
        user = ["uidrange", "65534-65534"] if "users" in features else ["uidrange", "1-1"]
        which = pick((user, ["fwmark", "7"], ["ipproto", "tcp", "dport", "PORT"], ["to", "127.0.0.2"],
                      ["from", "10.8.0.1"]))
        rules.append(("routing", which + [pick(("prohibit", "unreachable", "blackhole"))]))
    if "netfilter" in features and chance.random() < 0.3:
        what = pick(("meta skuid nobody", "tcp dport PORT", "ip daddr 127.0.0.2", "meta mark 7", "oifname lo ip saddr 10.8.0.1"))
        rules.append(("netfilter", f"{what} reject with tcp reset" if chance.random() < 0.8 else f"{what} tcp dport PORT dnat"))
    return {"listeners": listeners, "connects": connects, "rules": rules}


class Theatre:
    """A namespace, a daemon, and actors of both kinds."""

    def __init__(self, stage, features):
        self.stage, self.features = stage, features
        stage.ip("link", "add", "d0", "type", "veth", "peer", "name", "d1")
        for words in (("link", "set", "d1", "up"), ("link", "set", "d0", "up"), ("address", "add", "10.8.0.1/24", "dev", "d0"),
                      ("address", "add", "fd08::1/64", "dev", "d0", "nodad"), ("rule", "add", "pref", "100", "lookup", "local"),
                      ("-6", "rule", "add", "pref", "100", "lookup", "local"), ("rule", "del", "pref", "0"), ("-6", "rule", "del", "pref", "0")):
            stage.ip(*words)
        stage.sh("sysctl", "-qw", "net.ipv4.ip_local_port_range=50000 60999")
        stage.start()
        self.actors = {(user, fast): Actor(stage, user, fast) for user in USERS for fast in (False, True)}

    def rule(self, rule, port, add):
        kind, what = rule
        if kind == "routing":
            words = [str(port) if word == "PORT" else word for word in what]
            self.stage.ip("rule", "add" if add else "del", "pref", "50", *words)
        elif add:
            what = what.replace("PORT", str(port))
            hook = "type nat hook output priority -100" if what.endswith("dnat") else "type filter hook output priority 0"
            what = what.removesuffix("dnat") + f"dnat to 127.0.0.1:{port + 1}" if what.endswith("dnat") else what
            self.stage.sh("nft", f"add table ip t; add chain ip t c {{ {hook}; }}; add rule ip t c {what}")
        else:
            self.stage.sh("nft", "delete", "table", "ip", "t")

    def play(self, world, ports, fast, patience):
        """What is seen of a world, by calls that wait so many seconds for what does not come."""
        seen = []
        used = set()

        def actor(of):
            # Each actor of `space` has a namespace of its own.
            which = self.actors[of["user"], fast and (of["fast"] or of["user"] == "space")]
            used.add(which)
            return which
        for rule in world["rules"]:
            self.rule(rule, ports, True)
        try:
            alive = []
            for number, of in enumerate(world["listeners"]):
                said = actor(of)(do="listen", id=number, bind=[of["at"], ports + of["port"]],
                                 patience=patience, **{key: of[key] for key in ("six", "v6only", "reuse", "reuseport", "device")})
                seen.append(("listen", number, said.get("error")))
                if "error" not in said:
                    alive.append(number)
            for number in alive:
                of = world["listeners"][number]
                if of["then"] == "again":
                    said = [actor(of)(do=what, id=number).get("error") for what in ("shut", "again")]
                    seen.append(("again", number, said))
                elif of["then"]:
                    seen.append((of["then"], number, actor(of)(do=of["then"], id=number).get("error")))
            for number, of in enumerate(world["connects"]):
                seen.append(self.connect(number, of, world, ports, actor, used, patience))
        finally:
            for which in used:
                which(do="end")
            for rule in world["rules"]:
                self.rule(rule, ports, False)
        return seen

    def connect(self, number, of, world, ports, actor, used, patience):
        client = actor(of)
        call = {key: of[key] for key in ("six", "device", "mark")}
        if of["user"] != "root":
            call["mark"] = 0
        bind = [of["bind"], 0] if of["bind"] else None
        said = client(do="connect", id=100 + number, to=[of["to"], ports + of["port"]], bind=bind, patience=patience, **call)
        if "error" in said:
            # What was made all the same is not to be taken for the next one's.
            stray = sum(len(which(do="accept", patience=patience)["found"]) for which in list(used))
            return "connect", number, said["error"], stray
        found = [entry for which in list(used) for entry in which(do="accept", patience=patience).get("found", ())]
        read = client(do="read", id=100 + number)
        client(do="write", id=100 + number)
        heard = sorted(text for which in list(used) for text in which(do="hear").get("heard", ()))
        local, peer = said["local"], said["peer"]

        def short(address):
            return [address[0], "P" if address[1] == local[1] else address[1] - ports]
        # Members of a group are equals: which of them it is, is by the hash of a port that is the kernel's to choose.
        place = [(lambda one: (one["at"], one["six"], one["port"], bool(one["v6only"]) if one["six"] else None, one["device"],
                               one["user"], one["reuseport"]))(world["listeners"][id]) for id, *_ in found]
        seen = [[short(address) for address in addresses] for _, *addresses in found]
        return "connect", number, short(local), short(peer), place, seen, bool(read.get("read")), read.get("error"), heard[-1:] == ["hello"]


def differ(theatre, seed, number):
    """How the two plays of a world differ; nothing where they do not."""
    what = world(seed, theatre.features)
    base = 2000 + 4 * (number % 10000)
    # Once more with patience: what comes late on a machine with other work to do is no difference.
    for patience in (0.2, 3.0):
        kernel, ours = theatre.play(what, base, False, patience), theatre.play(what, base + 2, True, patience)
        if kernel == ours:
            return None, kernel
    lines = [f"world {seed}: " + json.dumps(what)]
    worse = False
    for one, other in zip(kernel, ours):
        if one != other:
            accepted = one[0] == "connect" and isinstance(one[2], str) and not isinstance(other[2], str)
            worse |= accepted
            lines.append(f"  kernel {one}\n  ours   {other}{'   ACCEPTED WHAT THE KERNEL REFUSES' if accepted else ''}")
    return "\n".join(lines), kernel


class Count:
    played = different = made = refused = fast = 0


def some(count, seeds, until, features, most):
    """Plays worlds on one stage, for as long as there are seeds and time."""
    with Stage("worlds") as stage:
        theatre = Theatre(stage, features)
        for number, seed in enumerate(seeds):
            if time.monotonic() > until or count.different >= most:
                break
            said, kernel = differ(theatre, seed, number)
            connects = [one for one in kernel if one[0] == "connect"]
            count.made += sum(not isinstance(one[2], str) for one in connects)
            count.refused += sum(isinstance(one[2], str) for one in connects)
            count.played += 1
            if said:
                count.different += 1
                print(said, flush=True)
        count.fast += stage.counter("local_connections")


def run(seed, worlds, seconds, features, jobs=3, most=5):
    """Plays worlds, on some stages at once; answers how many were played, how many differ, and how many connections were ours."""
    begun, count = time.monotonic(), Count()
    until = begun + seconds
    jobs = min(jobs, worlds)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        parts = [pool.submit(some, count, range(seed + job, seed + worlds, jobs), until, features, most) for job in range(jobs)]
        for part in parts:
            part.result()
    print(f"{count.played} worlds from seed {seed} in {time.monotonic() - begun:.0f} s: {count.different} differ; on the kernel {count.made} "
          f"connections and {count.refused} refusals, under fastsock {count.fast} by memory; with {', '.join(sorted(features)) or 'no'} rules")
    return count.played, count.different, count.fast
