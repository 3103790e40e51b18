"""A training loop's own clock: when each of its steps began and how long it was in each phase."""

import json
import time


class Clock:
    def __init__(self):
        self.steps, self.phases, self.phase, self.since = [], {}, "other", time.monotonic_ns()

    def at(self, phase):
        """The phase that begins now."""
        now = time.monotonic_ns()
        self.phases[self.phase] = self.phases.get(self.phase, 0) + now - self.since
        self.phase, self.since = phase, now

    def step(self):
        """A step begins now."""
        self.at("other")
        if self.steps:
            self.steps[-1][1] = self.phases
        self.phases = {}
        self.steps.append([self.since, None])

    def write(self, path):
        """The moment at which each step began, on CLOCK_MONOTONIC, and nanoseconds of its phases."""
        with open(path, "w") as file:
            json.dump(self.steps, file)
