"""The VM's state and its abstract operations, which the packages above implement and call."""
