"""`smg` and `python -m smg`: signals are handled before anything slow is imported."""

import sys

from smg.signals import STOPPED, handle_signals, say_stopped, stay_quiet


def main() -> None:
    """Run a command."""
    try:
        handle_signals()
        from smg.cli import main as run

        run()
    except KeyboardInterrupt:  # between two steps of a command's beginning or end
        stay_quiet()
        say_stopped()
        sys.exit(STOPPED)
    finally:
        stay_quiet()


if __name__ == "__main__":
    main()
