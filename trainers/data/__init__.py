"""Conversion of groups with credit to tensors: training rows, minibatches, micro-batches and their layouts."""
