"""The program behind the relay, and its clients, for tests/served.rs.

`peer.py server ADDRESS PORT [defer]` prints a line for each connection: its names as accept(2) and getpeername(2) tell
them. The first byte that a client sends says what the server does. `peer.py client ADDRESS PORT` runs each case and
prints what a client sees; the server prints what it sees. Both are the same by the kernel alone and over the relay.
"""
import hashlib
import select
import socket
import struct
import sys
import threading
import time

BULK = 8 << 20


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def pattern(size):
    block = hashlib.sha256(b"pattern").digest() * 2048
    return (block * (size // len(block) + 1))[:size]


def read_all(s, slowly=False):
    digest, count = hashlib.sha256(), 0
    while data := s.recv(1 << 16):
        digest.update(data)
        count += len(data)
        if slowly and count % 7 == 0:
            time.sleep(0.002)
    return f"{count} {digest.hexdigest()[:16]}"


def seen(call):
    """What a call returns, or the error's name."""
    try:
        return call()
    except OSError as error:
        return type(error).__name__


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def serve(s, peer):
    case = s.recv(1)
    said = ""
    if case == b"n":  # names
        s.sendall(f"{peer[:2]} {s.getpeername()[:2]} {s.getsockname()[:2]}".encode())
    elif case == b"e":  # echo until the client ends, then one more byte
        while data := s.recv(1 << 16):
            s.sendall(data)
        s.sendall(b"!")
    elif case == b"u":  # upload to a slow reader
        said = read_all(s, slowly=True)
        s.sendall(said.encode())
    elif case == b"d":  # download
        s.sendall(pattern(BULK))
    elif case == b"h":  # ends first, reads on
        s.sendall(b"bye")
        s.shutdown(socket.SHUT_WR)
        said = read_all(s)
    elif case == b"r":  # resets
        reset(s)
        return
    elif case == b"x":  # is reset
        s.sendall(b"k")
        said = seen(lambda: s.recv(1))
    elif case == b"y":  # has ended its stream when it is reset
        s.shutdown(socket.SHUT_WR)
        said = seen(lambda: s.recv(1))
    elif case == b"z":  # reads nothing until the client resets
        poll = select.poll()
        poll.register(s, 0)
        said = f"{[event for _, event in poll.poll(60_000)]}"
    elif case == b"q":  # closes with unread bytes: a reset
        s.recv(1)
    elif case == b"l":  # its last words, then the same
        time.sleep(0.3)
        s.sendall(b"last words")
    elif case == b"w":  # waits
        s.recv(1)
    if case not in b"nw" or not case:
        # One write: lines of other connections' threads must not come in between.
        sys.stdout.write(f"{case.decode()} {said}\n")
        sys.stdout.flush()
    s.close()


def server(address, port, *options):
    listener = socket.socket(family(address))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family(address) == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if "defer" in options:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
    listener.bind((address, int(port)))
    listener.listen(1024)
    print("listens", flush=True)
    while True:
        threading.Thread(target=serve, args=listener.accept(), daemon=True).start()


def connect(address, port):
    s = socket.create_connection((address, int(port)), timeout=60)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def names(address, port):
    """The server's view of the names is the client's."""
    s = connect(address, port)
    s.sendall(b"n")
    mapped = "::ffff:" if "." in address else ""
    said = s.recv(1000).decode()
    plain = lambda at: str((at[0], at[1]))
    own, other = plain(s.getsockname()), plain(s.getpeername())
    for prefix in ("", mapped):
        name, peer = own.replace("('", f"('{prefix}"), other.replace("('", f"('{prefix}")
        if said == f"{name} {name} {peer}":
            return "right"
    return f"client {own} to {other}, server: {said}"


def client(address, port):
    print("names", names(address, port))
    s = connect(address, port)
    s.sendall(b"e")
    for size in (1, 1000, 100_000):
        s.sendall(b"x" * size)
        left = size
        while left:
            left -= len(s.recv(left))
    s.shutdown(socket.SHUT_WR)
    print("half close", s.recv(10), s.recv(10))
    s = connect(address, port)
    s.sendall(b"u" + pattern(BULK))
    s.shutdown(socket.SHUT_WR)
    print("upload", s.recv(1000), s.recv(1))
    s = connect(address, port)
    s.sendall(b"d")
    print("download", read_all(s, slowly=True))
    s = connect(address, port)
    s.sendall(b"h")
    print("server ends first", s.recv(10), s.recv(10))
    s.sendall(pattern(100_000))
    s.close()
    s = connect(address, port)
    s.sendall(b"r")
    print("reset by the server", seen(lambda: s.recv(1)))
    for case in (b"x", b"y"):
        s = connect(address, port)
        s.sendall(case)
        # The server waits for the reset when this arrives.
        s.recv(1)
        reset(s)
    s = connect(address, port)
    s.sendall(b"z")
    s.settimeout(0.5)
    seen(lambda: s.sendall(pattern(8 * BULK)))
    reset(s)
    s = connect(address, port)
    s.sendall(b"q" + b"z" * 1000)
    print("closed with unread bytes", seen(lambda: s.recv(1)))
    s = connect(address, port)
    seen(lambda: s.sendall(b"l" + pattern(8 * BULK)))
    print("last words", seen(lambda: s.recv(10, socket.MSG_WAITALL)))
    time.sleep(0.5)


def many(address, port, count, *options):
    """Connections that are all open at once, each used twice. They may be held until the input ends."""
    every = [connect(address, port) for _ in range(int(count))]
    for s in every:
        s.sendall(b"e")
    for round in range(2):
        for number, s in enumerate(every):
            s.sendall(b"%06d" % number)
        for number, s in enumerate(every):
            assert s.recv(6, socket.MSG_WAITALL) == b"%06d" % number
    print("all", flush=True)
    if "held" in options:
        sys.stdin.read()


def hold(address, port):
    """One connection that is used each time a line is read."""
    s = connect(address, port)
    s.sendall(b"e")
    print("connected", flush=True)
    for line in sys.stdin:
        print(seen(lambda: (s.sendall(line.encode()), s.recv(100).decode().strip())[1]), flush=True)


def end(address, port):
    """How a connection ends that both sides read."""
    s = connect(address, port)
    s.sendall(b"x")
    s.recv(1)
    print("connected", flush=True)
    print(seen(lambda: s.recv(1)), flush=True)


{"server": server, "client": client, "many": many, "hold": hold, "end": end, "names": lambda *to: print(names(*to))}[sys.argv[1]](*sys.argv[2:])
