"""AppWorld's tasks, run and graded by the package ``appworld`` itself."""
