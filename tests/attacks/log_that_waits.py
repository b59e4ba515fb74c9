"""A run whose log is a pipe, to which nobody writes: who resumes it waits for ever."""

import os

import attack

PATIENCE = 2


def make(folder):
    (folder / "model.safetensors").unlink()
    attack.train(folder)
    (folder / "log.jsonl").unlink()
    os.mkfifo(folder / "log.jsonl")


def trusting(folder):
    (folder / "log.jsonl").read_bytes()


def ours(folder):
    attack.resume(folder)
