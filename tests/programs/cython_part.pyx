# cython: language_level=3
"""Calls back into Python from each kind of function that Cython makes."""


cdef long spin(long count):
    cdef long number, total = 0
    for number in range(count):
        total ^= number * total + 1
    return total


def cython_calls(function, int depth):
    if depth:
        return cython_calls(function, depth - 1)
    spin(100000)
    return function()


class Holder:
    def method(self, function):
        return function()

    def generate(self, function):
        yield function()
