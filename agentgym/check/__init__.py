"""Conformance checks, fault injection and scripted policies, shipped to users."""
