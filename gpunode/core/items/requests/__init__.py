"""Values of role options → requests of node scripts."""
