"""Four threads GET a URL until SIGTERM: http_load.py HOST PORT PATH FILE. FILE has the right body. Two connect for each request; two keep a connection for
900 requests, fewer than nginx's keepalive_requests and enough for a ring.

Prints one line of JSON every 0.2 s, with the totals so far: {"requests": N, "each": [N, …], "stale": N, "errors": {ERROR: N}}, "each"
by thread. If a kept connection ends before the first byte of a response, the request is repeated and counts as stale, not as an
error, because a server may close it at any time.
"""

import json
import signal
import socket
import sys
import threading
import time

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(sys.argv[4], "rb") as file:
    right = file.read()
lock = threading.Lock()
each, stale, errors, ending = [0] * 4, 0, {}, threading.Event()


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
    return None if body == right else "wrong body"


def work(number, keeps):
    global stale
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
            with lock:
                stale += 1
            continue
        except OSError as error:
            wrong = type(error).__name__
        with lock:
            each[number] += 1
            if wrong:
                errors[wrong] = errors.get(wrong, 0) + 1
        if connection and (wrong or not keeps or used == 900):
            connection.close()
            connection = None
        if wrong:
            time.sleep(0.01)


def report():
    with lock:
        print(json.dumps({"requests": sum(each), "each": each, "stale": stale, "errors": errors}), flush=True)


signal.signal(signal.SIGTERM, lambda *_: ending.set())
threads = [threading.Thread(target=work, args=thread) for thread in enumerate((False, False, True, True))]
for thread in threads:
    thread.start()
while not ending.wait(0.2):
    report()
for thread in threads:
    thread.join()
report()
