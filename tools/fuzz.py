"""Feeds the package what no person would write: python -m tools.fuzz [--inputs N] [--seed S].

Each input is a good one with random changes, judged by one of the targets: a vocabulary, a text
file, shards, the state of a run, trees, weights, config.json, lines to translate, a command line.
The contract: a right answer or one line that says what is wrong; never a traceback, a signal, a
hang, a changed input or a lost line. Whatever breaks it is printed with the command that repeats
it, and the exit status is 1.

The inputs of a target are numbered, and each follows from its number and the seed alone. They are
judged in forked processes, which may die. Google's atheris, which chooses inputs by the lines that
they reach, has wheels for Linux alone and stops at the first finding; hypothesis works in the
process that a signal or a hang would end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tools.arguments import parser_of
from tools.fuzz_targets import TARGETS, Target, prepare

SLOWEST, PATIENCE = 20, 600  # seconds for one input: of the processor, and on the wall
INTERESTING = (b"\0", b"\xff", b"\x80" * 10, b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\n", b"\r")


class Finding(NamedTuple):
    """An input that broke the contract."""

    target: str
    number: int
    what: str


def mutated(target: Target, seed: int, number: int) -> bytes:
    """Input `number`: one of the target's good ones, changed in one to eight places."""
    chance = random.Random(f"{seed} {target.name} {number}")
    data = bytearray(chance.choice(target.good))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        length = min(chance.choice((1, 1, 2, 8, 64, 4096)), len(data))
        match chance.randrange(8):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at % len(data)] = chance.randrange(256)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[chance.randrange(len(data) + 1) :][:length]
            case 4:
                data[at:at] = chance.randbytes(length)
            case 5:
                words = (*INTERESTING, *target.words)
                word = chance.choice(words)
                data[at : at + chance.choice((0, len(word)))] = word
            case 6:
                other = chance.choice(target.good)
                data[at:] = other[chance.randrange(len(other) + 1) :]
            case 7:
                del data[at:]
    return bytes(data)


def judge(target: Target, data: bytes) -> str:
    """What is wrong about the answer to one input, or nothing."""
    try:
        return target.judge(data)
    except Exception:
        return traceback.format_exc()


def work(target: Target, seed: int, numbers: range, report: Connection) -> None:
    """Judge inputs in this process: it sends the number of each, and then what is wrong."""
    for stops in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(stops, signal.SIG_DFL)
    for number in numbers:
        report.send(number)
        signal.setitimer(signal.ITIMER_PROF, SLOWEST)
        signal.alarm(PATIENCE)  # for what waits
        report.send(judge(target, mutated(target, seed, number)))


def run(target: Target, seed: int, numbers: range) -> list[Finding]:
    """The findings among inputs of one target."""
    wrongs = [(-1, judge(target, good)) for good in target.good]  # what is loaded late is loaded
    processes = multiprocessing.get_context("fork")
    while numbers:
        receiver, sender = processes.Pipe(duplex=False)
        worker = processes.Process(target=work, args=(target, seed, numbers, sender))
        worker.start()
        sender.close()
        number = numbers[0]
        with contextlib.suppress(EOFError):
            while True:
                number = receiver.recv()
                wrongs.append((number, receiver.recv()))
        worker.join()
        if worker.exitcode:
            name = signal.Signals(-worker.exitcode).name if worker.exitcode < 0 else "exit"
            hung = {"SIGPROF": f"computes for {SLOWEST} s", "SIGALRM": f"waits for {PATIENCE} s"}
            wrongs.append((number, hung.get(name, f"dies of {name}")))
            numbers = numbers[number + 1 - numbers.start :]
        else:
            numbers = range(0)
    return [Finding(target.name, number, wrong) for number, wrong in wrongs if wrong]


def command(target: str, seed: int, number: int) -> str:
    return f"python -m tools.fuzz --target {target} --seed {seed} --only {number}"


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="over all targets (default 1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=TARGETS, help="this one alone")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one input, in this process")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        targets = prepare(Path(folder))
        if args.only is not None:
            data = mutated(targets[args.target], args.seed, args.only)
            print(data[:2000])
            print(judge(targets[args.target], data) or "as it should be")
            return 0
        chosen = [targets[args.target]] if args.target else list(targets.values())
        whole = sum(target.share for target in chosen)
        n_inputs, findings = 0, list[Finding]()
        for target in chosen:
            n, began = -(-args.inputs * target.share // whole), time.perf_counter()
            found = run(target, args.seed, range(n))
            seconds = time.perf_counter() - began
            print(f"{target.name:10} {n:7,} inputs, {len(found)} findings, {seconds:6.1f} s")
            n_inputs, findings = n_inputs + n, findings + found
    kinds = {f.what.strip().splitlines()[-1][:40]: f for f in reversed(findings)}
    for finding in [*kinds.values()][:20]:  # one of each kind
        print(f"\n{finding.what.strip()}\n  {command(finding.target, args.seed, finding.number)}")
    print(f"{n_inputs:,} inputs, {len(findings)} of them not answered as promised")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
