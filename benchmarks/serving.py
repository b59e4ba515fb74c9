"""The server of book/serve.md under load: throughput, mixed-up answers, memory.

    python benchmarks/serving.py                               book/model, one thread
    python benchmarks/serving.py --small --out /tmp/serving.json

It starts the code of the page, sends 40 requests one after the other and at once, holds every
answer to the translator's own, and then sends 2,000 more and looks at the memory of the process.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import torch

from annotated_transformer.data import corpus
from benchmarks.timing import ROOT, as_text, out_path, write
from tools.arguments import parser_of, run_main

PAGE = ROOT / "book" / "serve.md"


def code_of_page() -> str:
    [code] = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(code)


@contextmanager
def served() -> Iterator[tuple[int, dict[str, Any]]]:
    """The page's server, in a thread: its port, and the names of its code."""
    import uvicorn

    names: dict[str, Any] = {"__name__": "server"}
    exec(compile(code_of_page(), str(PAGE), "exec"), names)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(names["app"], port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield port, names
    finally:
        server.should_exit = True
        thread.join()


def ask(port: int, body: Any) -> tuple[int, Any]:
    """The status and the answer of one request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        data = body if isinstance(body, str) else json.dumps(body)
        connection.request("POST", "/translate", data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")
    finally:
        connection.close()


def megabytes() -> float:
    """The resident memory of this process."""
    pages = int((open("/proc/self/statm").read()).split()[1])  # noqa: SIM115
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measured(texts: Sequence[str], n_more: int, at_once: int = 40) -> dict[str, Any]:
    with served() as (port, names), ThreadPoolExecutor(at_once) as pool:
        expected = names["translator"].translate(texts)
        ask(port, {"text": texts[0]})
        seconds = []
        for workers in (1, at_once):
            began = time.perf_counter()
            with ThreadPoolExecutor(workers) as some:
                answers = list(some.map(lambda text: ask(port, {"text": text}), texts))
            seconds.append(time.perf_counter() - began)
        mixed_up = sum(
            one["text"] != text for (_, one), text in zip(answers, expected, strict=True)
        )
        many = [texts[i % len(texts)] for i in range(n_more)]
        list(pool.map(lambda text: ask(port, {"text": text}), many[: n_more // 10]))
        before = megabytes()
        list(pool.map(lambda text: ask(port, {"text": text}), many))
        growth = megabytes() - before
    return {
        "requests": len(texts), "at once": at_once, "throughput": seconds[0] / seconds[1],
        "mixed-up answers": mixed_up, "requests more": n_more, "growth in MB": growth,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser_of(__doc__, small=True, out=True).parse_args(arguments)
    texts = [
        source for source, _ in corpus.load("tatoeba-en-de", "valid")[: 8 if args.small else 40]
    ]
    record = measured(texts, 20 if args.small else 2000)
    print(as_text(record))
    write(out_path(args, "serving"), "serving", arguments, [record])


if __name__ == "__main__":
    run_main(main)
