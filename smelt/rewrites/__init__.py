"""Rewrites of entire aten graphs before lowering."""
