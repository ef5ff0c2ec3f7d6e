"""Developer tools: tiny models, the toy target, the loopback Hub. Not part of the user's interface."""
