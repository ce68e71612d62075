#!/usr/bin/env python3
"""What setsockopt and getsockopt mean on a connection over the wire.

  options.py peer ADDRESS PORT DEVICE   on the kernel: answers commands, and tells what packets came
  options.py app ADDRESS PORT OWN       the program under test; OWN is its own address

Exits with 0 when everything is as on the kernel."""

import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
import threading
import time

SIOCOUTQ = 0x5411
SIOCOUTQNSD = 0x894B
TCP_USER_TIMEOUT = 18
SO_RCVBUFFORCE = 33


# ---- the peer


class Sniffer(threading.Thread):
    """Every TCP packet that comes in on a device."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        # A burst waits here for this thread; what overflows is missing from the record, a connection's SYN perhaps.
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.bind((device, 0))
        self.lock = threading.Lock()
        self.packets = []

    def run(self):
        while True:
            frame, where = self.socket.recvfrom(65536)
            if where[2] == socket.PACKET_OUTGOING or frame[23] != 6:
                continue
            ip = frame[14:]
            header = (ip[0] & 15) * 4
            tcp = ip[header:]
            sport, dport, seq, ack, offset, flags, window, _, urgent = struct.unpack("!HHIIBBHHH", tcp[:20])
            length = struct.unpack("!H", ip[2:4])[0] - header - (offset >> 4) * 4
            options, mss = tcp[20 : (offset >> 4) * 4], None
            while options and options[0] != 0:
                if options[0] == 1:
                    options = options[1:]
                    continue
                if options[0] == 2:
                    mss = struct.unpack("!H", options[2:4])[0]
                options = options[max(options[1], 2) :]
            packet = {"sport": sport, "seq": seq, "flags": flags, "len": length, "tos": ip[1], "ttl": ip[8]}
            packet |= {"mss": mss, "urgent": urgent, "at": time.monotonic()}
            with self.lock:
                self.packets.append(packet)


def peer(address, port, device):
    sniffer = Sniffer(device)
    sniffer.start()
    listener = socket.create_server((address, port), backlog=64)
    connections = {}
    print("ready", flush=True)
    control, _ = listener.accept()
    for line in control.makefile():
        command, *args = json.loads(line)
        answer = None
        if command == "accept":
            connection, client = listener.accept()
            connections[client[1]] = connection
        elif command == "connect":
            connection = socket.create_connection(tuple(args[0]))
            connections[connection.getsockname()[1]] = connection
            answer = connection.getsockname()[1]
        elif command == "read":
            data = b""
            while len(data) < args[1]:
                data += connections[args[0]].recv(min(65536, args[1] - len(data))) or b"?" * (args[1] - len(data))
            answer = len(data)
        elif command == "oob":
            answer = connections[args[0]].recv(1, socket.MSG_OOB).decode()
        elif command == "write":
            connections[args[0]].sendall(b"x" * args[1])
        elif command == "write-oob":
            connections[args[0]].send(args[1].encode(), socket.MSG_OOB)
        elif command == "packets":
            with sniffer.lock:
                answer = [packet for packet in sniffer.packets if packet["sport"] == args[0]]
        elif command == "close":
            connections.pop(args[0]).close()
        control.sendall(json.dumps(answer).encode() + b"\n")


# ---- the program under test


class Peer:
    def __init__(self, address, port):
        self.at = (address, port)
        self.socket = socket.create_connection(self.at)
        self.file = self.socket.makefile()

    def __call__(self, *command):
        self.socket.sendall(json.dumps(command).encode() + b"\n")
        return json.loads(self.file.readline())

    def connection(self, *options):
        """A connection to the peer with these options set before; its port."""
        s = socket.socket()
        for option in options:
            s.setsockopt(*option)
        s.connect(self.at)
        self("accept")
        return s, s.getsockname()[1]

    def packets(self, port, until, limit=50):
        """The packets from a port, as soon as they are as they should be."""
        end = time.monotonic() + limit
        while True:
            packets = self("packets", port)
            if until(packets) or time.monotonic() > end:
                assert until(packets), packets[-20:]
                return packets
            time.sleep(0.02)


def info(s):
    raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 248)
    names = "rto ato snd_mss rcv_mss unacked sacked lost retrans fackets last_data_sent last_ack_sent last_data_recv"
    names += " last_ack_recv pmtu rcv_ssthresh rtt rttvar snd_ssthresh snd_cwnd advmss reordering rcv_rtt rcv_space"
    names += " total_retrans"
    values = dict(zip(names.split(), struct.unpack_from("24I", raw, 8)))
    long = dict(zip(["pacing", "max_pacing", "bytes_acked", "bytes_received"], struct.unpack_from("4Q", raw, 104)))
    return {"state": raw[0], "options": raw[5], "notsent": struct.unpack_from("I", raw, 144)[0]} | values | long


def outq(s, request=SIOCOUTQ):
    return struct.unpack("i", fcntl.ioctl(s, request, b"\0" * 4))[0]


def data(packets):
    return [packet for packet in packets if packet["len"] > 1]


def probes(packets):
    """Keepalive probes: without news, at a number that was sent before."""
    seen, found = None, 0
    for packet in packets:
        if packet["flags"] & 2:
            seen = packet["seq"] + 1 & 0xFFFFFFFF
        elif seen is not None:
            if packet["len"] <= 1 and packet["seq"] == (seen - 1 & 0xFFFFFFFF) and not packet["flags"] & 5:
                found += 1
            seen = max(seen, packet["seq"] + packet["len"])
    return found


TCP = socket.IPPROTO_TCP


def tcp_info(peer):
    s, port = peer.connection()
    s.sendall(b"x" * 100_000)
    peer("read", port, 100_000)
    peer("write", port, 50_000)
    got = 0
    while got < 50_000:
        got += len(s.recv(65536))
    i = info(s)
    assert i["state"] == 1, i
    # The kernel counts its SYN.
    assert i["bytes_acked"] in (100_000, 100_001) and i["bytes_received"] == 50_000, i
    assert 0 < i["rtt"] < 10_000_000 and i["rto"] >= 200_000 and i["snd_cwnd"] >= 10, i
    assert 1200 <= i["snd_mss"] <= 1460 and i["pmtu"] == 1500 and i["options"] & 7 == 7, i
    assert i["unacked"] == 0 and i["notsent"] == 0, i
    assert s.getsockopt(TCP, socket.TCP_MAXSEG) == i["snd_mss"]
    peer("close", port)
    while info(s)["state"] != 8:
        time.sleep(0.01)


def congestion(peer):
    s, _ = peer.connection()
    name = lambda: s.getsockopt(TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    assert name() in (b"cubic", b"reno", b"bbr"), name()
    s.setsockopt(TCP, socket.TCP_CONGESTION, b"reno")
    assert name() == b"reno", name()
    try:
        s.setsockopt(TCP, socket.TCP_CONGESTION, b"no-such")
        raise AssertionError("it was taken")
    except OSError as error:
        assert error.errno == errno.ENOENT, error
    assert name() == b"reno", name()
    s, _ = peer.connection((TCP, socket.TCP_CONGESTION, b"reno"))
    assert name() == b"reno", name()


def queue(peer):
    s, port = peer.connection()
    s.setblocking(False)
    sent = 0
    while select.select([], [s], [], 0.5)[1]:
        sent += s.send(b"x" * 65536)
    full, unsent = outq(s), outq(s, SIOCOUTQNSD)
    assert 100_000 < full <= sent and 0 < unsent <= full, (sent, full, unsent)
    assert info(s)["notsent"] > 0
    peer("read", port, sent)
    end = time.monotonic() + 50
    while outq(s) and time.monotonic() < end:
        time.sleep(0.01)
    assert outq(s) == 0, outq(s)


KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (TCP, socket.TCP_KEEPIDLE, 1),
    (TCP, socket.TCP_KEEPINTVL, 1),
]


def keepalive(peer):
    before, first = peer.connection(*KEEPALIVE)
    after, second = peer.connection()
    without, third = peer.connection()
    for option in KEEPALIVE:
        after.setsockopt(*option)
    for port in (first, second):
        peer.packets(port, lambda packets: probes(packets) >= 2)
    assert probes(peer("packets", third)) == 0
    assert before.getsockopt(TCP, socket.TCP_KEEPIDLE) == 1


def cork(peer):
    # What is held back is so for 200 ms: again where the machine let this program wait for longer.
    for _ in range(10):
        s, port = peer.connection()
        s.setsockopt(TCP, socket.TCP_CORK, 1)
        begin = time.monotonic()
        for _ in range(5):
            s.send(b"x" * 100)
        s.setsockopt(TCP, socket.TCP_CORK, 0)
        was_held_up = time.monotonic() - begin > 0.15
        packets = data(peer.packets(port, lambda packets: sum(p["len"] for p in packets) >= 500))
        first = [packet["len"] for packet in packets]
        begin = time.monotonic()
        s.send(b"y" * 10, socket.MSG_MORE)
        time.sleep(0.05)
        s.send(b"y" * 10)
        was_held_up |= time.monotonic() - begin > 0.15
        packets = data(peer.packets(port, lambda packets: sum(p["len"] for p in packets) >= 520))
        if not was_held_up:
            assert first == [500], first
            assert [packet["len"] for packet in packets] == [500, 20], packets
            return
    raise AssertionError("never in time")


def linger(peer):
    s, port = peer.connection((socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
    s.close()
    packets = peer.packets(port, lambda packets: any(packet["flags"] & 4 for packet in packets))
    assert not any(packet["flags"] & 1 for packet in packets), packets
    # The peer does not read: close waits as long as it is told to.
    s, port = peer.connection()
    s.setblocking(False)
    sent = 0
    while select.select([], [s], [], 0.3)[1]:
        sent += s.send(b"x" * 65536)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
    begin = time.monotonic()
    s.close()
    assert time.monotonic() - begin >= 0.9
    # What was sent is not lost.
    assert peer("read", port, sent) == sent
    # It has everything: close does not wait.
    s, port = peer.connection((socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60)))
    s.send(b"bye")
    peer("read", port, 3)
    begin = time.monotonic()
    s.close()
    assert time.monotonic() - begin < 30


def header(peer):
    options = [(socket.IPPROTO_IP, socket.IP_TOS, 0x10), (socket.IPPROTO_IP, socket.IP_TTL, 33)]
    s, port = peer.connection(*options, (TCP, socket.TCP_MAXSEG, 1000))
    s.sendall(b"x" * 5000)
    packets = peer.packets(port, lambda packets: sum(p["len"] for p in packets) >= 5000)
    assert packets[0]["flags"] & 2 and packets[0]["mss"] == 1000, packets[0]
    assert all(packet["ttl"] == 33 and packet["tos"] & 0xFC == 0x10 for packet in packets), packets
    assert all(packet["len"] <= 1000 for packet in packets), packets
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20)
    s.send(b"y" * 9)
    packets = peer.packets(port, lambda packets: sum(p["len"] for p in packets) >= 5009)
    assert packets[-1]["tos"] & 0xFC == 0x20, packets[-1]


def urgent(peer):
    s, port = peer.connection()
    s.send(b"ab")
    s.send(b"!", socket.MSG_OOB)
    s.send(b"cd")
    packets = peer.packets(port, lambda packets: sum(p["len"] for p in packets) >= 5)
    assert any(packet["flags"] & 0x20 for packet in packets), packets
    assert peer("oob", port) == "!"
    assert peer("read", port, 4) == 4
    peer("write", port, 3)
    peer("write-oob", port, "?")
    peer("write", port, 2)
    assert select.select([], [], [s], 50)[2], "no POLLPRI"
    assert s.recv(1, socket.MSG_OOB) == b"?"
    got = b""
    while len(got) < 5:
        got += s.recv(100)
        assert got in (b"xxx", b"xxxx", b"xxxxx"), got


def bound(peer):
    """The port that was asked for is the connection's, with an address and without."""
    own = peer.socket.getsockname()[0]
    for at in ("", 881), (own, 882), ("", 0):
        s = socket.socket()
        s.bind(at)
        s.connect(peer.at)
        peer("accept")
        port = s.getsockname()[1]
        assert at[1] in (port, 0), (at, port)
        peer("write", port, 5)
        assert s.recv(5, socket.MSG_WAITALL) == b"x" * 5
        s.close()
        peer("close", port)


def user_timeout(peer):
    s, port = peer.connection((TCP, TCP_USER_TIMEOUT, 1500))
    assert s.getsockopt(TCP, TCP_USER_TIMEOUT) == 1500
    s.settimeout(60)
    # The peer does not read: its window closes, and stays so.
    try:
        while True:
            s.send(b"x" * 65536)
    except OSError as error:
        assert error.errno == errno.ETIMEDOUT, error


def listener(peer, own):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in KEEPALIVE:
        server.setsockopt(*option)
    server.setsockopt(TCP, socket.TCP_NODELAY, 1)
    server.bind((own, 7400))
    server.listen(16)
    # After listen, as nginx does.
    server.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
    server.setsockopt(TCP, socket.TCP_DEFER_ACCEPT, 5)
    client = peer("connect", [own, 7400])
    assert not select.select([server], [], [], 0.3)[0], "accepted without data"
    peer("write", client, 10)
    s, _ = server.accept()
    assert s.recv(100) == b"x" * 10
    assert s.getsockopt(TCP, socket.TCP_NODELAY) == 1 and s.getsockopt(TCP, socket.TCP_KEEPIDLE) == 1
    assert info(s)["state"] == 1 and info(s)["bytes_received"] == 10, info(s)
    s.send(b"answer")
    packets = peer.packets(7400, lambda packets: probes(packets) >= 1)
    assert data(packets)[-1]["tos"] & 0xFC == 0x28, packets


def app(address, port, own):
    peer = Peer(address, port)
    for test in (tcp_info, congestion, queue, keepalive, cork, linger, header, urgent, bound, user_timeout):
        test(peer)
        print(test.__name__, flush=True)
    listener(peer, own)
    print("all", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "peer":
        peer(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        app(sys.argv[2], int(sys.argv[3]), sys.argv[4])
