"""Identifiers and types that all layers share. Pure."""
