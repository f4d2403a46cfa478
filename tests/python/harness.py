"""Runs the cases of a plain test program and prints, last, how many passed, failed and were skipped."""

import re
import sys
import traceback


def share(text):
    """(i, n) of "i/n"."""
    i, n = map(int, text.split("/"))
    if not 1 <= i <= n:
        raise ValueError(f"{text}: a share from 1/{n} to {n}/{n} is taken")
    return i, n


class Skip(Exception):
    """A case that cannot run here, and why."""


class Report:
    """Of all cases, or, with share (i, n), i from 1 on, of the i-th n-th of those that take() is asked for."""

    def __init__(self, share=(1, 1)):
        self.passed = self.failed = self.skipped = 0
        self.share = share

    def take(self, items):
        """This share of the items: every item is in one share, neighbours mostly in the same."""
        items, (i, n) = list(items), self.share
        return items[len(items) * (i - 1) // n:len(items) * i // n]

    def run(self, name, function, *args):
        """One case: it passes unless it raises."""
        try:
            function(*args)
        except Skip as why:
            self.skip(name, why)
        except Exception:  # a failed case must not hide the others
            self.failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
        else:
            self.passed += 1
            print(f"{name}: ok", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        # The second line is what script/test counts.
        print(f"{name}: skipped: {why}\n[  SKIPPED ] {re.sub(r'[^0-9A-Za-z]+', '_', name)}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed else 0)
