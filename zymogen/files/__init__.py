"""Files: `durable` writes them whole, `disk_error` explains errors of a disk, `suggestions` finds a similar name."""
