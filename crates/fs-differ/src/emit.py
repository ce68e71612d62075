#!/usr/bin/env python3
# One program of fs-differ. Run it as it is, and by `fastsock run -- python3 FILE`: each line is a step and what it answered.
# Ports p0 to p3 are 7800 to 7803. Several actors: each is a process (or thread) that does its steps when it is told to.
import ctypes, errno, os, select, signal, socket, struct, sys, threading, time
C = ctypes.CDLL(None, use_errno=True)
slots, BASE = [-1] * 16, 7800
HOSTS = {"any4": "0.0.0.0", "lo4": "127.0.0.1", "lo4b": "127.0.0.2", "any6": "::", "lo6": "::1", "mapped": "::ffff:127.0.0.1"}
pipes = {a: (os.pipe(), os.pipe()) for a in range(5)}
for a in pipes: pipes[a] = tuple(tuple(__import__("fcntl").fcntl(e, 0, 200) for e in p) for p in pipes[a])
for n in range(3, 24): os.close(n) if n < 200 and os.path.exists(f"/proc/self/fd/{n}") else None
pending, me = {}, None


def res(r):
    return str(r) if r != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")


def made(slot, r):
    if r >= 0: slots[slot] = r
    return res(r)


def address(host, port):
    port = 0 if port == "none" else BASE + int(port[1])
    if host in ("any6", "lo6", "mapped"):
        return struct.pack("=HHI16sI", 10, socket.htons(port), 0, socket.inet_pton(10, HOSTS[host]), 0)
    b = struct.pack("=HH4s8s", 0 if host == "unspec" else 2, socket.htons(port), socket.inet_aton(HOSTS.get(host, "127.0.0.1")), b"")
    return b[:7] if host == "short" else b


def pattern(n, size):
    return bytes(((n * 37 + 11) ^ (i * 7 + (i >> 8))) & 255 for i in range(size))


def perform(n, call, a):
    S = lambda i: slots[a[i]]
    if call == "socket":
        fam = 2 if a[1] == "inet" else 10
        r = C.socket(fam, 1 | a[2] & ~0x10000000, 0)
        if r >= 0 and not a[2] & 0x10000000: C.setsockopt(r, 6, 1, b"\1\0\0\0", 4)
        return made(a[0], r)
    if call in ("socketpair", "pipe"):
        v = (ctypes.c_int * 2)()
        r = C.socketpair(1, 1 | a[2], 0, v) if call == "socketpair" else C.pipe2(v, a[2])
        if r == 0: slots[a[0]], slots[a[1]] = v
        return res(r)
    if call == "memfd":
        r = C.memfd_create(b"x", 1); os.pwrite(r, pattern(n, a[1]), 0); return made(a[0], r)
    if call == "close": return res(C.close(S(0)))
    if call == "dup": return made(a[1], C.dup(S(0)))
    if call == "dup2": return res(C.dup2(S(0), S(1)))
    if call == "dup3": return res(C.dup3(S(0), S(1), 0o2000000 if a[2] == "cloexec" else 0))
    if call == "f_dupfd": return made(a[1], C.fcntl(S(0), 1030 if a[2] == "cloexec" else 0, 3))
    if call == "f_getfl": return res(C.fcntl(S(0), 3))
    if call == "f_setfl": return res(C.fcntl(S(0), 4, a[1] & 0o4000))
    if call == "f_getfd": return res(C.fcntl(S(0), 1))
    if call == "f_setfd": return res(C.fcntl(S(0), 2, int(a[1] == "cloexec")))
    if call == "fionbio": return res(C.ioctl(S(0), 0x5421, ctypes.byref(ctypes.c_int(a[1]))))
    if call == "lseek": return res(C.lseek(S(0), 0, 1))
    if call == "close_range": return res(C.close_range(min(S(0), S(1)), max(S(0), S(1)), 0))
    if call in ("bind", "connect"):
        b = address(a[1], a[2]); return res(getattr(C, call)(S(0), b, len(b)))
    if call == "listen": return res(C.listen(S(0), a[1]))
    if call == "accept": return made(a[1], C.accept4(S(0), None, None, a[3]) if a[2] == "accept4" else C.accept(S(0), None, None))
    if call in ("getsockname", "getpeername"):
        b, l = ctypes.create_string_buffer(128), ctypes.c_int(128)
        r = getattr(C, call)(S(0), b, ctypes.byref(l)); return b.raw[:l.value].hex() if r == 0 else res(r)
    if call == "send":
        b, f = pattern(n, a[2]), a[3]
        if a[1] in ("write", "writev"): return res(C.write(S(0), b, len(b)))
        return res(C.send(S(0), b, len(b), f))
    if call == "recv":
        b = ctypes.create_string_buffer(max(a[2], 1))
        return res(C.read(S(0), b, a[2]) if a[1] in ("read", "readv") else C.recv(S(0), b, a[2], a[3]))
    if call == "fill":
        left, tries = a[1], 0
        while left > 0:
            r = C.send(S(0), b"x" * min(left, 16384), min(left, 16384), 0x4040)
            if r > 0: left, tries = left - r, 0
            elif ctypes.get_errno() != 11: return res(r)
            elif tries == 20: return f"stuck, {left} are left"
            else: tries += 1; time.sleep(.001)
        return "all"
    if call == "drain":
        got, b = 0, ctypes.create_string_buffer(65536)
        while (r := C.recv(S(0), b, 65536, 0x40)) > 0: got += r
        return f"{got} then {res(r)}"
    if call == "sendfile":
        at = ctypes.c_int64(C.lseek(S(1), 0, 1)); has = a[2] % 2 and at.value >= 0
        said = res(C.sendfile(S(0), S(1), ctypes.byref(at) if has else None, a[2]))
        if has: C.lseek(S(1), at, 0)
        return said
    if call == "splice": return res(C.splice(S(0), None, S(1), None, a[2], 2))
    if call == "shutdown": return res(C.shutdown(S(0), {"rd": 0, "wr": 1, "rdwr": 2, "bad": 3}[a[1]]))
    if call == "ioctl":
        v = ctypes.c_int(-7); r = C.ioctl(S(0), {"fionread": 0x541b, "siocoutq": 0x5411, "siocatmark": 0x8905, "outqnsd": 0x894b}[a[1]], ctypes.byref(v))
        return f"{v.value}" if r == 0 else res(r)
    if call == "setsockopt":
        v = struct.pack("i", a[2]) if a[1] != (1, 13) else struct.pack("ii", int(a[2] >= 0), max(a[2], 0))
        return res(C.setsockopt(S(0), *a[1], v, len(v)))
    if call == "getsockopt":
        v, l = (ctypes.c_int * 2)(), ctypes.c_int(8)
        r = C.getsockopt(S(0), *a[1], v, ctypes.byref(l)); return f"{list(v)[:max(l.value // 4, 1)]}" if r == 0 else res(r)
    if call == "timeout":
        v = struct.pack("qq", a[2] // 1000, a[2] % 1000 * 1000); return res(C.setsockopt(S(0), 1, {"rcv": 20, "snd": 21}[a[1]], v, 16))
    if call == "poll":
        v = (ctypes.c_ulonglong * 2)(*(struct.unpack("Q", struct.pack("ihh", f, a[2], 0))[0] for f in (S(0), S(1))))
        r = C.poll(v, 2, a[3]); return res(r) + "".join(" %#x" % (x >> 48) for x in v)
    if call == "epoll_create": return made(a[0], C.epoll_create1(a[1] & 0o2000000))
    if call == "epoll_ctl": return res(C.epoll_ctl(S(0), {"add": 1, "del": 2, "mod": 3}[a[1]], S(2), struct.pack("=IQ", a[3] & 0xffffffff, a[2])))
    if call == "epoll_wait":
        b = ctypes.create_string_buffer(12 * 32); r = C.epoll_wait(S(0), b, min(a[1], 32), a[2])
        return res(r) + "".join(" s%d=%#x" % (d, m) for m, d in (struct.unpack_from("=IQ", b, 12 * i) for i in range(max(r, 0))))
    if call == "handler":
        s = {"usr1": signal.SIGUSR1, "usr2": signal.SIGUSR2}.get(a[0])
        if s: signal.signal(s, signal.SIG_IGN if a[1] == "ignore" else lambda *_: None); signal.siginterrupt(s, a[1] != "restart")
        return "ok"
    if call == "give": socket.send_fds(socket.socket(fileno=os.dup(S(0))), [b"\7"], [S(1)]); return "ok"
    if call == "take":
        try: _, fds, _, _ = socket.recv_fds(socket.socket(fileno=os.dup(S(0))), 1, 1)
        except OSError as e: return errno.errorcode[e.errno]
        if fds: slots[a[1]] = fds[0]
        return str(fds)
    if call == "nofile":
        import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (a[0], 4096)); return "ok"
    if call == "pause": time.sleep(a[0] / 1000); return "ok"
    return "not in this form: fs-differ run FILE"


def actor(me):
    while True:
        n, = struct.unpack("I", os.read(pipes[me][0][0], 4) or os._exit(0))
        _, call, a = steps[n]
        if call == "fork":
            if os.fork() == 0: actor(a[0])
            r = "ok"
        elif call == "thread": threading.Thread(target=actor, args=(a[0],), daemon=True).start(); r = "ok"
        elif call == "exit": os._exit(0)
        elif call in ("exec", "exec_plain"): r = "not in this form: fs-differ run FILE"
        else: r = perform(n, call, a)
        os.write(pipes[me][1][1], f"{os.getpid()} {n:3} {me}: {call} {a} = {r}\n".encode())


steps, pids = {}, {}


def step(n, place, call, *a):
    steps[n] = (place, call, a)


def hear(wait):
    r, _, _ = select.select([p[1][0] for p in pipes.values()], [], [], wait)
    for fd in r:
        for line in os.read(fd, 65536).decode().splitlines():
            pid, rest = line.split(" ", 1); pids[int(rest.split()[1][:-1])] = int(pid); print(rest, flush=True)
    return r


def finish():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if os.fork() == 0: actor(0)
    for n, (place, call, a) in steps.items():
        if call == "signal" and a[0] in pids: os.kill(pids[a[0]], {"kill": 9, "usr1": 10, "usr2": 12, "stop": 19, "cont": 18}[a[1]]); time.sleep(.05)
        elif call != "signal": os.write(pipes[place][0][1], struct.pack("I", n))
        if call in ("exit", "fork"): time.sleep(.05)
        hear(.05)
    while hear(.3): pass
    for p in set(pids.values()): os.kill(p, 9)
