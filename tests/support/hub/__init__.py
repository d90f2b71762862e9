"""A hub on loopback, with the requests that the HuggingFace library makes; begin with `server`."""
