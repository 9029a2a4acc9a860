"""Foreign clients: each protocol is translated into control sessions, so that all that holds for those holds here."""
