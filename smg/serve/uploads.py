"""Scans that were uploaded over HTTP: kept in the spool until they have not been used for a while."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from smg.serve import spool


@dataclass
class Upload:
    """A scan, alone in its folder: one file, or the files of a DICOM series."""

    folder: Path
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)

    @property
    def scan(self) -> Path:
        """Return the path to read the scan from."""
        files = list(self.folder.iterdir())
        return files[0] if len(files) == 1 and files[0].suffix else self.folder


class Uploads:
    """Uploaded scans by the identifier that the caller gave, or by a session's."""

    def __init__(self, folder: Path, seconds: float, bound: int) -> None:
        self.folder, self.seconds, self.bound = folder, seconds, bound
        self.lock = threading.Lock()
        self.held: dict[str, Upload] = {}

    def new_folder(self) -> Path:
        """Return a folder to receive files into."""
        return spool.new_folder(self.folder)

    def keep(self, folder: Path, identifier: str | None = None) -> str:
        """Keep a received scan under an identifier, or a new one; beyond the bound the oldest is deleted."""
        name = identifier or secrets.token_hex(16)
        with self.lock:
            replaced = self.held.pop(name, None)
            self.held[name] = Upload(folder)
            gone = [replaced] if replaced else []
            while len(self.held) > self.bound:
                gone.append(self.held.pop(min(self.held, key=lambda key: self.held[key].used)))
        for upload in gone:
            spool.delete(upload.folder)
        return name

    def find(self, identifier: str) -> Upload | None:
        """Return a scan, and note that it was used."""
        with self.lock:
            upload = self.held.get(identifier)
            if upload:
                upload.used = time.time()
            return upload

    def remove(self, identifier: str) -> bool:
        """Delete a scan; return whether there was one."""
        with self.lock:
            upload = self.held.pop(identifier, None)
        if upload:
            spool.delete(upload.folder)
        return upload is not None

    def expire(self) -> None:
        """Delete scans that were not used for a while."""
        with self.lock:
            old = [name for name, upload in self.held.items() if time.time() - upload.used > self.seconds]
        for name in old:
            self.remove(name)
