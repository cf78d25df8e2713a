"""What the native hook asks when a call matches no entry: the frame is captured, its graph compiled, an entry installed."""
