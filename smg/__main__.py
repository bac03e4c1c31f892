"""`smg` and `python -m smg`: signals are handled before anything slow is imported."""

from smg.signals import handle_signals


def main() -> None:
    """Run a command."""
    handle_signals()
    from smg.cli import main as run

    run()


if __name__ == "__main__":
    main()
