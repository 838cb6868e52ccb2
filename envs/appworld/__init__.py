"""AppWorld's tasks, played and judged by the package ``appworld`` itself."""
