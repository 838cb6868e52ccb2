"""Published mathematics problems: MATH, MATH-500, AIME."""
