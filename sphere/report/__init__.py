"""From run directories to numbers, tables, figures and a page. Nothing here needs jax or a simulator."""
