"""Environments whose agent drives a real browser; needs the extra ``gui`` and Chromium."""
