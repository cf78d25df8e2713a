"""Locks that a function creates, and locks of the environment."""

from __future__ import annotations

import threading

from torch import nn

import smelt
from tests.harness.catalogue import program, tensor


@program(graphs=1, fullgraph=True)
def locks_created_inside():
    def fn(x):
        lock, again = threading.Lock(), threading.RLock()
        with lock, again:
            with again:
                y = x + 1
            held = lock.locked()
        return y, held, lock.locked(), lock.acquire(False), lock.acquire(blocking=False)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, fullgraph=True)
def a_lock_that_an_exception_releases():
    def fn(x):
        lock = threading.Lock()
        try:
            with lock:
                raise ValueError(type(lock).__name__)
        except ValueError as error:
            return x + 1, lock.locked(), str(error)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, fullgraph=True)
def a_lock_that_a_module_keeps():
    class Guarded(nn.Module):
        def forward(self, x):
            self.lock = threading.Lock()
            with self.lock:
                return x + 1

    guarded = Guarded()
    return guarded, [(tensor(3),)] * 3, lambda: guarded.lock.acquire(blocking=False)


@program(graphs=0, eager=["unsupported-object"])
def a_held_lock_that_leaves():
    def fn(x, locks):
        locks.append(threading.Lock())
        locks[-1].acquire()
        return x + 1, locks[-1].locked()

    locks = []
    return fn, [(tensor(3), locks)] * 3, lambda: [lock.locked() for lock in locks]


@program(graphs=2, breaks=["graph-break-requested", "unsupported-object", "unsupported-object"])
def a_lock_across_a_break():
    def fn(x):
        lock = threading.RLock()
        x = x + 1
        smelt.graph_break()
        with lock:
            return x * 2

    return fn, [(tensor(3),)] * 3


@program(graphs=3, breaks=["unsupported-object", "unsupported-object"])
def a_lock_of_the_environment():
    lock = threading.Lock()

    def fn(x):
        x = x * 2
        with lock:
            y = x + 1
        return y * 2, lock

    return (lambda x: fn(x)[0]), [(tensor(3),)] * 3, lambda: lock.locked()
