"""Files: `durable` writes them whole and explains errors of a disk, `suggestions` finds a similar name."""
