"""The command `ampft`, also as `python -m ampft`."""

import signal
import sys


def main() -> int:
    """Run the command; return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command hears signals, Ctrl-C ends it without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ampft.errors import OTHER_ENVIRONMENT

    try:
        from ampft.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ampft"):
            raise
        print(f"error: {error} ({sys.executable}). {OTHER_ENVIRONMENT}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
