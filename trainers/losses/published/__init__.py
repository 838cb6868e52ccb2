"""Losses and regularisers of single papers, one file each: the decorator, the settings and the formula.

The registry imports every module of this folder. So that lists stay fast, they import torch in their functions alone.
"""
