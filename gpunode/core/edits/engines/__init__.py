"""Container engines: files → files, one module or family of modules per engine."""
