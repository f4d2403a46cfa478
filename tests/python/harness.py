"""Runs the cases of a plain test program and prints, last, how many passed, failed and were skipped."""

import re
import sys
import traceback


class Skip(Exception):
    """A case that cannot run here, and why."""


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

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
