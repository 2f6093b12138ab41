"""Plan × nodes → which node holds which rank. Pure."""
