"""The recorded backward and the joint graph."""
