"""The one exception a user's mistake becomes: a single line that names the file and says what to do."""


class SmgError(Exception):
    """Something the user can mend. The command line prints its message, without a traceback, and exits 1."""
