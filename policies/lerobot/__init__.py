"""What the policies published by LeRobot have in common: their `config.json`, statistics and processor files."""
