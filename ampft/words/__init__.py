"""Words with a tag each, and spans of characters: entities, parts of speech."""
