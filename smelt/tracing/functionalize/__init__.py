"""In-place graphs made functional."""
