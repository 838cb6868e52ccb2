"""Turn-level credit assignment: shapers, estimators, modulators and selections. Needs only numpy, not the trainer."""
