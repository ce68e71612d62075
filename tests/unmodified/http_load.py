"""Four threads GET a URL until SIGTERM: http_load.py HOST PORT PATH. Two connect for each request; two keep a connection for
900 requests, fewer than nginx's keepalive_requests and enough for a ring.

Prints one line of JSON every 0.2 s, with the totals so far: {"requests": N, "errors": {ERROR: N}}. If a kept connection ends before
the first byte of a response, the request is repeated and no error counted, because a server may close it at any time.
"""

import json
import signal
import socket
import sys
import threading
import time

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
lock = threading.Lock()
requests, errors, ending = 0, {}, threading.Event()


class Stale(Exception):
    pass


def ask(connection, keeps, kept):
    """Returns what is wrong with the response, or None."""
    closes = "" if keeps else "Connection: close\r\n"
    begun = False
    try:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{closes}\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = connection.recv(65536)
            if not piece:
                break
            begun = True
            answer += piece
    except (ConnectionResetError, BrokenPipeError):
        if kept and not begun:
            raise Stale from None
        raise
    if not answer and kept:
        raise Stale
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return "closed without an answer"
    if not head.startswith(b"HTTP/1.1 200"):
        return head.split(b"\r\n")[0].decode()
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            return "cut off"
        body += piece
    return None if len(body) == length else "too long"


def work(keeps):
    global requests
    connection, used = None, 0
    while not ending.is_set():
        try:
            if not connection:
                connection, used = socket.create_connection((host, port), timeout=20), 0
            used += 1
            wrong = ask(connection, keeps, used > 1)
        except Stale:
            connection.close()
            connection = None
            continue
        except OSError as error:
            wrong = type(error).__name__
        with lock:
            requests += 1
            if wrong:
                errors[wrong] = errors.get(wrong, 0) + 1
        if connection and (wrong or not keeps or used == 900):
            connection.close()
            connection = None
        if wrong:
            time.sleep(0.01)


signal.signal(signal.SIGTERM, lambda *_: ending.set())
threads = [threading.Thread(target=work, args=(keeps,)) for keeps in (False, False, True, True)]
for thread in threads:
    thread.start()
while not ending.wait(0.2):
    with lock:
        print(json.dumps({"requests": requests, "errors": errors}), flush=True)
for thread in threads:
    thread.join()
print(json.dumps({"requests": requests, "errors": errors}), flush=True)
