"""Many connections that were used a little, and one that is used: `serve HOST PORT`, `load HOST PORT CONNECTIONS SECONDS`.

The load prints us of CPU of both ends for a round trip by the one, and KiB of both ends' memory for each of the others.
"""

import select
import socket
import struct
import sys
import time

# Enough calls at each end for a ring.
CALLS = 12
# A message that asks for the server's CPU time and memory.
STATE = b"s"


def memory_kib():
    """This process's share of its resident memory."""
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def serve(host, port):
    listener = socket.create_server((host, port), backlog=4096)
    listener.setblocking(False)
    epoll, streams = select.epoll(), {}
    epoll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in epoll.poll():
            if number == listener.fileno():
                stream, _ = listener.accept()
                stream.setblocking(False)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                streams[stream.fileno()] = stream
                epoll.register(stream, select.EPOLLIN)
                continue
            stream = streams[number]
            try:
                message = stream.recv(64)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                message = b""
            if message == STATE:
                message = struct.pack("dq", time.process_time(), memory_kib())
            if message:
                stream.send(message)
            else:
                epoll.unregister(stream)
                streams.pop(number).close()


class Load:
    def __init__(self, host, port):
        self.address = (host, port)
        self.epoll = select.epoll()

    def connect(self):
        stream = socket.create_connection(self.address)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setblocking(False)
        self.epoll.register(stream, select.EPOLLIN)
        return stream

    def trip(self, stream, message=b"8 bytes."):
        stream.send(message)
        while True:
            self.epoll.poll()
            try:
                return stream.recv(64)
            except BlockingIOError:
                pass

    def state(self, stream):
        """CPU time and memory of both ends."""
        cpu, memory = struct.unpack("dq", self.trip(stream, STATE))
        return time.process_time() + cpu, memory_kib() + memory


def load(host, port, connections, seconds):
    load = Load(host, port)
    one = load.connect()
    _, memory = load.state(one)
    others = []
    for _ in range(connections):
        others.append(load.connect())
        for _ in range(CALLS):
            load.trip(others[-1])
    before, more = load.state(one)
    trips, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(100):
            load.trip(one)
        trips += 100
    after, _ = load.state(one)
    print(f"{(after - before) * 1e6 / trips:.3f} {(more - memory) / connections:.3f}")


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    load(sys.argv[2], *(int(word) for word in sys.argv[3:6]))
