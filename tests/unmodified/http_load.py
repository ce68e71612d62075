"""Four threads GET a URL, each time over a new connection, until SIGTERM: http_load.py HOST PORT PATH.

Prints one line of JSON for each 0.2 s, {"requests": so many so far, "errors": {what: how many so far}}.
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
request = f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()


def once():
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while True:
            piece = connection.recv(65536)
            if not piece:
                break
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return "closed without an answer"
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        return head.split(b"\r\n")[0].decode()
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:") and int(line.split(b":")[1]) != len(body):
            return "cut off"
    return None


def work():
    global requests
    while not ending.is_set():
        try:
            wrong = once()
        except OSError as error:
            wrong = type(error).__name__
        with lock:
            requests += 1
            if wrong:
                errors[wrong] = errors.get(wrong, 0) + 1
        if wrong:
            time.sleep(0.01)


signal.signal(signal.SIGTERM, lambda *_: ending.set())
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
while not ending.wait(0.2):
    with lock:
        print(json.dumps({"requests": requests, "errors": errors}), flush=True)
for thread in threads:
    thread.join()
print(json.dumps({"requests": requests, "errors": errors}), flush=True)
