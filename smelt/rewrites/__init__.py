"""Rewrites of whole aten graphs before lowering."""
