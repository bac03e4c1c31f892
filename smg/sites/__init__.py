"""From files on disk to sites: volume files, folder layouts, checks, splits, phantom sites."""
