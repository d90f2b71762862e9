"""Settings of data: `packing` holds those of packing alone, `settings` all others."""
