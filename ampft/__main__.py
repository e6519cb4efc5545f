"""The command `ampft`, also as `python -m ampft`."""

import signal
import sys


def main() -> int:
    """Run the command; return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command hears signals, Ctrl-C ends it without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ampft.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
