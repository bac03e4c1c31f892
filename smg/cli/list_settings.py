"""`smg settings`: list every setting with its default."""

from __future__ import annotations

from smg.cli.options import Json
from smg.report.text import print_json


def settings(as_json: Json = False) -> None:
    """List every setting for `--set KEY=VALUE` and YAML files, with its default and its meaning.

    Example: `smg settings`
    """
    from smg.learner.setting_list import all_settings

    rows = all_settings()
    if as_json:
        print_json([dict(zip(("key", "default", "meaning"), row, strict=True)) for row in rows])
        return
    for key, default, meaning in rows:
        print(f"{key:25} {default:11} {meaning}")
