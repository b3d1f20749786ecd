"""The drafters, one file per method, behind the protocol in `base`."""
