"""From shards to windows of records in memory, every byte checked."""
