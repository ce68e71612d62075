"""Eight threads POST bodies and compare the answers, each time over a new blocking connection: load_client.py --to HOST:PORT
--requests N. The output is that of the client "asker" of make compat.

Some requests are made by a forked child, and some with a program run in the middle of them.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

THREADS = 8
HUNG = 30
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
host, _, port = arguments["--to"].partition(":")
to = (host, int(port))
left, right, wrong, since = int(arguments["--requests"]), 0, {}, {}
lock = threading.Lock()


def ask(number):
    """Returns what is wrong with the response, or None."""
    body = f"{number} ".encode() * (1 if number % 10 else 3000)
    path = {3: "fork", 13: "spawn", 23: "system"}.get(number % 400, "echo")
    head = f"POST /{path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.connect(to)
        if number % 200 == 7:
            subprocess.run(["true"], check=True)
        connection.sendall(head.encode() + body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    said, _, back = answer.partition(b"\r\n\r\n")
    if not said:
        return "closed"
    status = said.split(b" ", 2)[1].decode()
    if status != "200":
        return f"answer {status}"
    if back != body:
        return "closed" if len(back) < len(body) else "answer with another body"
    return None


def kind(number):
    try:
        return ask(number)
    except ConnectionRefusedError:
        return "refused"
    except (ConnectionResetError, BrokenPipeError):
        return "reset"
    except OSError as error:
        return str(error)


def by_process(number):
    ours, childs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(childs, (kind(number) or "").encode())
        os._exit(0)
    os.close(childs)
    with open(ours) as said:
        what = said.read()
    status = os.waitpid(child, 0)[1]
    return what or (f"child {status}" if status else None)


def work(me):
    global left, right
    while True:
        with lock:
            left -= 1
            number = left
        if number < 0:
            break
        since[me] = time.monotonic()
        while what := by_process(number) if number % 100 == 51 else kind(number):
            with lock:
                wrong[what] = wrong.get(what, 0) + 1
            time.sleep(0.01)
        with lock:
            right += 1
    since.pop(me, None)


def tell(done):
    with lock:
        counts = {"right": right, "left": 0, "wrong": wrong, "seconds": time.monotonic() - start, "done": done}
        print(json.dumps(counts), flush=True)


start = time.monotonic()
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    while thread.is_alive():
        thread.join(0.2)
        if any(time.monotonic() - at > HUNG for at in list(since.values())):
            with lock:
                wrong["hung (a request)"] = 1
            tell(False)
            os._exit(1)
        tell(False)
tell(True)
