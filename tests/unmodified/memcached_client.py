"""Four threads set, get and delete items of a memcached: memcached_client.py HOST PORT."""

import hashlib
import socket
import sys
import threading

host, port = sys.argv[1], int(sys.argv[2])
failures = []


def work(number):
    try:
        with socket.create_connection((host, port)) as connection:
            stream = connection.makefile("rwb")
            for turn in range(200):
                key = f"key-{number}-{turn}".encode()
                value = hashlib.sha256(key).digest() * (1 + turn * 20 % 900)
                stream.write(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
                stream.flush()
                assert stream.readline() == b"STORED\r\n"
                stream.write(b"get %s\r\n" % key)
                stream.flush()
                assert stream.readline() == b"VALUE %s 0 %d\r\n" % (key, len(value))
                assert stream.read(len(value) + 2) == value + b"\r\n"
                assert stream.readline() == b"END\r\n"
                if turn % 3 == 0:
                    stream.write(b"delete %s\r\nget %s\r\n" % (key, key))
                    stream.flush()
                    assert stream.readline() == b"DELETED\r\n" and stream.readline() == b"END\r\n"
    except Exception as error:
        failures.append(repr(error))


threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("failures:", failures) if failures else print("ok")
sys.exit(1 if failures else 0)
