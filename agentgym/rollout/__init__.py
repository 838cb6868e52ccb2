"""Episodes: sessions, the loop, groups, their order and their record."""
