"""Place of custom reward nodes in the architecture guide (section 11.2); any module works."""
