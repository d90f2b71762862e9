"""A server of an object store on this machine."""
