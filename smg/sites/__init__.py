"""From files on disk to sites: volume files, folder layouts, checks and splits."""
