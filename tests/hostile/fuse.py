"""Offers the match service descriptors of a FUSE file whose flush is never answered: fuse.py CONTROL MOUNTPOINT.

Prints "held" when a close of one of them blocks, and runs until it is killed.
"""

import ctypes
import os
import socket
import struct
import sys
import time

control, mountpoint = sys.argv[1:]
INIT, LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH = 26, 1, 2, 3, 14, 18, 25
device = os.open("/dev/fuse", os.O_RDWR)
os.makedirs(mountpoint, exist_ok=True)
libc = ctypes.CDLL(None, use_errno=True)
data = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"fuse", mountpoint.encode(), b"fuse", 0, data) != 0:
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")


def attributes(node):
    mode = 0o40755 if node == 1 else 0o100644
    return struct.pack("<6Q3I6II", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve():
    while True:
        request = os.read(device, 1 << 20)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode == INIT:
            answer = struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0).ljust(64, b"\0")
        elif opcode == LOOKUP:
            answer = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2)
        elif opcode == GETATTR:
            answer = struct.pack("<QII", 0, 0, 0) + attributes(node)
        elif opcode == OPEN:
            answer = struct.pack("<QII", 1, 0, 0)
        elif opcode == FLUSH:
            print("held", flush=True)
            continue
        elif opcode == FORGET:
            continue
        else:
            answer = b""
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


# The file system is a process of its own without open files of it. When it is killed, no process waits for it any more.
if os.fork() == 0:
    serve()
os.close(device)
file = os.open(mountpoint + "/file", os.O_RDONLY)


held = []
for number in range(1, 20):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(control)
    offer = struct.pack("<4sBBHQQQ", b"fsK1", 1, 0, 0, number, 0, 0)
    socket.send_fds(connection, [offer if number % 2 else b"nonsense"], [file])
    held.append(connection)
time.sleep(1000)
