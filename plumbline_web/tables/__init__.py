"""What lists of rows share: pages, exports, filters' forms, and short addresses."""
