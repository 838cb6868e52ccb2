"""Turn-level credit: shaping, estimators, modulators; numpy alone, usable without the trainer."""
