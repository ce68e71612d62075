#!/usr/bin/env python3
"""Plays the attacks; see `cargo xtask help`."""

import argparse
import concurrent.futures
import os
import shutil
import signal
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attacks  # noqa: E402
import crowd  # noqa: E402
import rules  # noqa: E402
import worlds  # noqa: E402
from stage import ROOT, Broken, Inapplicable, Late, Stage  # noqa: E402

# What is not yet a part of worlds, as the attack of this name works.
OPEN_FEATURES = {"netfilter": "output-rule-of-a-user", "routing": "routing-rule-of-a-port", "users": "routing-rule-of-the-servers-user"}
PAGE = "docs/SECURITY.md"
MARKS = "<!-- cargo xtask redteam --table -->\n", "<!-- end of the table -->\n"

for module in ("identity", "isolation", "kernel_rules", "control", "wire", "library"):
    if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), module + ".py")):
        __import__(module)


def expected_open():
    """Attacks that work on this tree, and why: `name: reason`."""
    rows = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "open.txt")) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, reason = line.split(":", 1)
                rows[name.strip()] = reason.strip()
    return rows


def table():
    """Returns the table of attacks for docs/SECURITY.md."""
    known = expected_open()
    rows = ["| attack | what it is about | |", "|---|---|---|"]
    for name, (row, play) in attacks.ALL.items():
        about = row + (f": {' '.join(play.__doc__.split())}" if play.__doc__ else "")
        # Rows start with the number of their class.
        about = about.split(": ", 1)[1] if about[:1].isdigit() else about
        rows.append(f"| `{name}` | {about.replace('|', '/')} | {'**works**: ' + known[name] if name in known else 'held'} |")
    return "\n".join(rows) + "\n"


# Attempts for an attack that did not take place, or depends on timing. The last one counts.
TRIES = 3
# Exit status of a crash: a panic, or a signal that the program raised itself.
CRASHES = {101, *(-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))}


def play(name):
    begun = time.monotonic()
    for _ in range(TRIES):
        verdict, is_sure = play_once(name)
        if is_sure:
            break
        print(f"{name:44} again: {verdict}", flush=True)
    return name, verdict, time.monotonic() - begun


def play_once(name):
    """The verdict, and whether it would be the same on a machine with other work to do."""
    stage, is_sure = None, True
    try:
        with Stage(name) as stage:
            attacks.ALL[name][1](stage)
        verdict = "held"
    except Broken as gained:
        verdict, is_sure = f"BROKEN: {gained}", not isinstance(gained, Late)
    except Inapplicable as why:
        verdict = f"not here: {why}"
    except Exception as error:  # noqa: BLE001: whatever it is, the attack did not take place
        where = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in where if "redteam" in frame.filename][-3:]
        at = " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in reversed(ours))
        verdict, is_sure = f"ERROR: {type(error).__name__}: {error} ({at})", False
    daemon = stage.daemon.popen.poll() if stage and stage.daemon else None
    if daemon in CRASHES:
        verdict, is_sure = f"BROKEN: the daemon has crashed ({daemon}): {verdict}", True
    return verdict, is_sure


def main():
    parser = argparse.ArgumentParser(description="Plays attacks on the daemon and its processes as unprivileged users.")
    parser.add_argument("names", nargs="*", help="attacks, or prefixes of their names [default: all]")
    parser.add_argument("--list", action="store_true", help="lists the attacks")
    parser.add_argument("--table", action="store_true", help=f"writes the table in {PAGE}")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--worlds", type=int, metavar="N", help="plays N random worlds instead, on the kernel and on fastsock")
    parser.add_argument("--seconds", type=float, default=1e9, help="stops worlds or rule sets after this time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one")
    parser.add_argument("--rules", type=int, metavar="N", help="plays N random nftables rule sets instead")
    parser.add_argument("--price", action="store_true", help="measures what a connect costs with 0, 100 and 10,000 rules")
    parser.add_argument("--crowd", type=int, metavar="N", help="measures a daemon with so many clients, and hostile users beside them")
    options = parser.parse_args()
    if options.crowd:
        if os.geteuid() != 0:
            print("skipped: redteam: not root")
            return 0
        return 0 if crowd.run(options.crowd, min(options.seconds, 5)) else 1
    if options.price:
        rules.price()
        return 0
    if options.rules:
        if os.geteuid() != 0 or not shutil.which("nft"):
            print("skipped: redteam: not root, or no nft(8)")
            return 0
        played, wrong, fast = rules.run(options.seed, options.rules, options.seconds)
        return 1 if wrong or not played or not fast else 0
    if options.worlds:
        if os.geteuid() != 0:
            print("skipped: redteam: not root")
            return 0
        features = OPEN_FEATURES.keys() - {feature for feature, name in OPEN_FEATURES.items() if name in expected_open()}
        played, different, fast = worlds.run(options.seed, options.worlds, options.seconds, features, options.jobs)
        return 1 if different or not played or not fast else 0
    names = [name for name in attacks.ALL if not options.names or any(name.startswith(start) for start in options.names)]
    if options.list:
        for name in names:
            print(f"{name:44} {attacks.ALL[name][0]}")
        return 0
    with open(os.path.join(ROOT, PAGE)) as file:
        before, rest = file.read().split(MARKS[0])
    written, after = rest.split(MARKS[1])
    if options.table:
        with open(os.path.join(ROOT, PAGE), "w") as file:
            file.write(before + MARKS[0] + table() + MARKS[1] + after)
        return 0
    if os.geteuid() != 0:
        print("skipped: redteam: not root (it starts programs as other users, in network namespaces)")
        return 0
    known = expected_open()
    wrong = [f"{name} is in open.txt, but there is no such attack" for name in known if name not in attacks.ALL]
    if written != table():
        wrong.append(f"the table of {PAGE} is out of date: cargo xtask redteam --table")
    held = broken = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, verdict, seconds in pool.map(play, names):
            print(f"{name:44} {seconds:4.1f} s  {verdict}", flush=True)
            held += verdict == "held"
            broken += verdict.startswith("BROKEN")
            if verdict.startswith("ERROR"):
                wrong.append(f"{name} did not take place")
            elif verdict.startswith("BROKEN") and name not in known:
                wrong.append(f"{name} is BROKEN")
            elif verdict == "held" and name in known:
                wrong.append(f"{name} is held, and must leave open.txt")
    print(f"{len(names)} attacks, {held} held, {broken} broken ({sum(name in known for name in names)} expected)")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
