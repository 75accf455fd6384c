"""What the project's commands share."""

import argparse
import os
import sys
from typing import Callable


class Parser(argparse.ArgumentParser):
    """argparse, with all that is wrong with a command line raised as a ValueError."""

    def error(self, message):
        raise ValueError(message)


def while_read(job: Callable[[], int]) -> int:
    """The job's status, or 141 if whoever reads what it prints has had enough."""
    try:
        status = job()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
